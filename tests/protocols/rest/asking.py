"""Short ways to ask."""

from __future__ import annotations

from typing import Any

import httpx


def done(response: httpx.Response, status: int = 200) -> Any:
    """The decoded body of an answer that has to have this status."""
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def refused(response: httpx.Response, status: int, code: str) -> str:
    """The detail of a problem that has to be this one."""
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json", response.text
    assert (response.status_code, problem["status"], problem["code"]) == (status, status, code), response.text
    assert problem["type"] == f"/v1/problems/{code}"
    assert problem["title"]
    return str(problem["detail"])


def send(http: httpx.Client, queue: str, *bodies: str, **fields: Any) -> list[Any]:
    messages = [{"body": body, **fields} for body in bodies]
    found: list[Any] = done(http.post(f"/v1/queues/{queue}/messages", json=messages), 201)["messages"]
    return found


def receive(http: httpx.Client, queue: str, max: int = 10, **fields: Any) -> list[Any]:
    found: list[Any] = done(http.post(f"/v1/queues/{queue}/receive", json={"max": max, **fields}))["messages"]
    return found


def bodies(messages: list[Any]) -> list[str]:
    return [message["body"] for message in messages]
