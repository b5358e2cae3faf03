"""The examples of docs/pipelines.md run as printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from penstock.pipelines.yaml_file import SINK_KEYS, SOURCE_KEYS, STEP_KEYS, TOP_KEYS
from tests.pipelines.running import Bench
from tests.spark.running import Queues

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text()
BODIES = ('{"id": 1, "amount": 500}', '{"id": 2, "amount": 5}', '{"id": 3, "amount": -5}', "broken")


def block(language: str) -> str:
    """The page's whole pipeline in a language. Later blocks show parts of one."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def bodies(queues: Queues, name: str) -> list[Any]:
    return [record["body"] for record in queues.rest("GET", f"/v1/queues/{name}/records?offset=0&max=100")["records"]]


def test_the_examples_do_the_same_in_yaml_and_in_python(queues: Queues) -> None:
    queues.rest("POST", "/v1/queues/orders/messages", [{"body": body} for body in BODIES])
    for name, text in (("orders.yaml", block("yaml")), ("orders.py", block("python"))):
        if name == "orders.py":  # beside the other: its own dead letters, channels and directory
            text = text.replace("orders.rejects", "py.rejects").replace("large-orders", "py-large")
            name = "orders_py.py"
        bench = Bench(queues, text, name)
        assert bench.run().state == "done"
    for large, rejects in (("large-orders", "orders.rejects"), ("py-large", "py.rejects")):
        assert [json.loads(body)["id"] for body in bodies(queues, large)] == [1]
        assert bodies(queues, rejects) == list(BODIES[2:])
    assert Bench(queues, block("yaml")).files("archive/orders", "id") == [(1,), (2,)]


def test_the_page_explains_every_key() -> None:
    keys = {*TOP_KEYS, *SOURCE_KEYS, *STEP_KEYS, *SINK_KEYS}
    assert not [key for key in keys if f"`{key}`" not in PAGE and f"`{key}:" not in PAGE and f"`{key}," not in PAGE]
