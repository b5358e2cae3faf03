"""YAML with line numbers: what is read keeps the place where it stands, so that errors can say it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.pipelines.errors import InvalidDefinition, Place, Problem, SparkMissing

FILE_BYTES_MAX = 1024 * 1024
_NODES_MAX = 20_000
_DEPTH_MAX = 20


@dataclass(frozen=True)
class Located:
    """A value of a YAML file, and its place. Mappings and lists hold such values again."""

    value: Any
    at: Place

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: each.plain() for key, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.plain() for each in self.value]
        return self.value


def load_yaml(file: Path) -> Located:
    """Read a file; `InvalidDefinition` says where it is no YAML."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise SparkMissing("a pipeline in YAML needs PyYAML: pip install 'penstock[spark]'") from None
    data = file.read_bytes()
    if len(data) > FILE_BYTES_MAX:
        raise InvalidDefinition([Problem(Place(str(file)), f"{len(data)} bytes: at most {FILE_BYTES_MAX} are read")])
    try:
        node = yaml.compose(data.decode(), Loader=yaml.SafeLoader)
        if node is None:
            raise InvalidDefinition([Problem(Place(str(file)), "is empty: it needs a source and a sink")])
        return _Reader(str(file), yaml).read(node, "", 0)
    except UnicodeDecodeError as error:
        raise InvalidDefinition([Problem(Place(str(file)), f"is no UTF-8: {error}")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Place(str(file), mark.line + 1 if mark else None)
        raise InvalidDefinition([Problem(at, f"is no YAML: {error.problem or error}")]) from None
    except yaml.YAMLError as error:
        raise InvalidDefinition([Problem(Place(str(file)), f"is no YAML: {error}")]) from None


class _Reader:
    def __init__(self, file: str, yaml: Any) -> None:
        self._file = file
        self._yaml = yaml
        self._scalars = yaml.constructor.SafeConstructor()
        self._nodes = 0

    def read(self, node: Any, key: str, depth: int) -> Located:
        at = Place(self._file, node.start_mark.line + 1, key)
        self._nodes += 1
        if self._nodes > _NODES_MAX or depth > _DEPTH_MAX:
            raise InvalidDefinition([Problem(at, "is too large: too many values, or too deep")])
        if isinstance(node, self._yaml.MappingNode):
            return Located(self._mapping(node, key, depth), at)
        if isinstance(node, self._yaml.SequenceNode):
            return Located([self.read(each, f"{key}[{n}]", depth + 1) for n, each in enumerate(node.value)], at)
        try:
            return Located(self._scalars.construct_object(node), at)
        except (self._yaml.YAMLError, ValueError) as error:
            raise InvalidDefinition([Problem(at, f"cannot be read: {error}")]) from None

    def _mapping(self, node: Any, key: str, depth: int) -> dict[str, Located]:
        found: dict[str, Located] = {}
        for name_node, value_node in node.value:
            name = (
                str(self._scalars.construct_object(name_node)) if isinstance(name_node, self._yaml.ScalarNode) else "?"
            )
            path = f"{key}.{name}" if key else name
            if name in found:
                at = Place(self._file, name_node.start_mark.line + 1, path)
                raise InvalidDefinition(
                    [Problem(at, f"stands here a second time (first on line {found[name].at.line})")]
                )
            value = self.read(value_node, path, depth + 1)
            found[name] = Located(value.value, Place(self._file, name_node.start_mark.line + 1, path))
        return found
