"""The OpenAPI 3.1 document, made of the operations and of the structs that they take and give."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.protocols.rest.operations import ARROW, BATCH, JSON, Operation
from penstock.protocols.rest.problems import Problem

_REFERENCE = "#/components/schemas/{name}"
_NAME = {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9._#-]{1,128}$"}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "queue": {"schema": _NAME, "description": "A queue's name."},
    "channel": {"schema": _NAME, "description": "A channel's name."},
    "consumer": {"schema": _NAME, "description": "A consumer's name."},
    "session": {"schema": {"type": "string", "pattern": "^[0-9]{1,19}$"}, "description": "A session."},
    "task": {"schema": {"type": "string", "pattern": "^[0-9]{1,18}$"}, "description": "A redrive's number."},
}
_ABOUT = """Durable queues over HTTP. Lengths of time are seconds, moments are seconds since 1970.
Errors are `application/problem+json`; their `code` is for programs. Sends, settling and units of work take an
`Idempotency-Key` header: the same request again is not done again. docs/rest.md says more, with examples."""
_PROBLEM = {
    "description": "What went wrong.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def document(operations: Sequence[Operation], version: str, *, needs_credentials: bool) -> dict[str, Any]:
    """The whole document, as plain data."""
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _described(operation, schemas, components)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    queries = {operation.query.__name__ for operation in operations if operation.query not in (None, operation.body)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version, "description": _ABOUT, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "security": [{"bearer": []}, {"basic": []}] if needs_credentials else [],
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A credential's token, or access_key:secret_key.",
                },
                "basic": {"type": "http", "scheme": "basic", "description": "Access key and secret key."},
            },
        },
    }


def _schemas(operations: Iterable[Operation]) -> tuple[dict[Any, dict[str, Any]], dict[str, dict[str, Any]]]:
    """A schema for each type, and what the schemas refer to."""
    types: list[Any] = [Problem]
    for operation in operations:
        found = (operation.query, operation.body, operation.result)
        types += [each for each in found if each is not None and each not in types]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    return dict(zip(types, schemas, strict=True)), components


def _described(
    operation: Operation, schemas: dict[Any, dict[str, Any]], components: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, **_PARAMETERS[name]} for name in operation.parameters),
            *_query_parameters(operation.query, components),
        ],
        "responses": {str(operation.status): _success(operation, schemas), "4XX": _PROBLEM, "5XX": _PROBLEM},
    }
    if operation.description:
        described["description"] = operation.description
    if operation.body is not None:
        content = {JSON: {"schema": schemas[operation.body]}}
        if operation.batch is not None:
            content[BATCH] = {"schema": _binary("MessagePack of", operation.batch)}
        described["requestBody"] = {"required": _must_be_given(operation.body), "content": content}
    return described


def _success(operation: Operation, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if operation.result is None:
        return {"description": "Done."}
    content: dict[str, Any] = {JSON: {"schema": schemas[operation.result]}}
    if operation.batch_result is not None:
        content[BATCH] = {"schema": _binary("MessagePack of", operation.batch_result)}
    if ARROW in operation.offers:
        content[ARROW] = {"schema": {"type": "string", "contentMediaType": ARROW}}
    return {"description": operation.summary, "content": content}


def _binary(what: str, shape: Any) -> dict[str, Any]:
    return {"type": "string", "contentMediaType": BATCH, "description": f"{what} {shape.__name__}"}


def _must_be_given(body: Any) -> bool:
    """Whether an empty body would not do."""
    parts = typing.get_args(body) or (body,)
    return any(
        field.required
        for part in parts
        if isinstance(part, type) and issubclass(part, msgspec.Struct)
        for field in msgspec.structs.fields(part)
    )


def _query_parameters(
    query: type[msgspec.Struct] | None, components: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    if query is None:
        return []
    schema = components[query.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(field)}
        for name, field in schema["properties"].items()
    ]


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: a parameter that may be null is one that may be left out."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) != 1 or schema.get("default", 0) is not None:
        return schema
    return {**kinds[0], **({"description": schema["description"]} if "description" in schema else {})}
