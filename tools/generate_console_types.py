"""Write the types of the REST API for the console: `python -m tools.generate_console_types`, with `.venv`'s python.

Every shape of the OpenAPI document becomes an interface, and every operation a row of `Operations`: what its path and
query take, what its body is, and what it answers. The page does not compile when it asks for what the server lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import penstock
from penstock.protocols.rest.app import resources_of
from penstock.protocols.rest.operations import JSON, document, operations_of

TARGET = Path(__file__).parents[1] / "console/src/schema.ts"
_HEADER = "// Made from the OpenAPI document by `python -m tools.generate_console_types`: do not edit.\n"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def generated() -> str:
    """The whole file."""
    services: Any = SimpleNamespace(shard=None, settings=SimpleNamespace(rest=None))
    described = document(list(operations_of(resources_of(services, penstock.__version__))), "", needs_credentials=False)
    shapes = (_interface(name, schema) for name, schema in sorted(described["components"]["schemas"].items()))
    rows = (
        _row(f"{method.upper()} {path}", operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    )
    return "\n".join([_HEADER, *shapes, "export interface Operations {", *rows, "}"]) + "\n"


def _interface(name: str, schema: Mapping[str, Any]) -> str:
    if "properties" not in schema:
        return f"export type {name} = {_type(schema)};"
    required = schema.get("required", ())
    fields = (
        f"  {field}{'' if field in required else '?'}: {_type(of)};" for field, of in schema["properties"].items()
    )
    return "\n".join([f"export interface {name} {{", *fields, "}"])


def _row(key: str, operation: Mapping[str, Any]) -> str:
    asked = [
        f"{each['name']}{'' if each['required'] else '?'}: {_type(each['schema'])}" for each in operation["parameters"]
    ]
    body = operation.get("requestBody")
    if body is not None:
        asked.append(f"body{'' if body['required'] else '?'}: {_type(body['content'][JSON]['schema'])}")
    success = next(iter(operation["responses"].values())).get("content", {}).get(JSON)
    answer = "void" if success is None else _type(success["schema"])
    return f'  "{key}": {{ asked: {{ {"; ".join(asked)} }}; answer: {answer} }};'


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in TypeScript's words.

    >>> _type({"anyOf": [{"type": "integer"}, {"type": "null"}]}), _type({"enum": ["a", "b"]})
    ('number | null', '"a" | "b"')
    """
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return _union(f'"{each}"' if isinstance(each, str) else str(each) for each in schema["enum"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return _union(_type(each) for each in schema[union])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_type({**schema, "type": each}) for each in kind)
    if kind == "array":
        of = _type(schema.get("items") or {})
        return f"({of})[]" if " " in of else f"{of}[]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"{{ [name: string]: {_type(values) if isinstance(values, dict) else 'unknown'} }}"
    return _PLAIN.get(str(kind), "unknown")


def _union(kinds: Iterable[str]) -> str:
    def parts() -> Iterator[str]:
        yield from dict.fromkeys(kinds)

    return " | ".join(parts())


if __name__ == "__main__":
    TARGET.write_text(generated())
