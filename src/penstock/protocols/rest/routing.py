"""Which route a path has: a tree of the paths' segments, where `{name}` stands for any one segment."""

from __future__ import annotations

from penstock.protocols.rest.endpoint import Parameters, Route


class _Node:
    __slots__ = ("children", "names", "route", "wild")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.wild: _Node | None = None
        self.route: Route | None = None
        self.names: list[str] = []


class Routes:
    """Routes by their paths.

    >>> routes = Routes()
    >>> routes.add("/v1/queues/{queue}/messages", print)
    >>> routes.find("/v1/queues/orders/messages")[1], routes.find("/v1/queues//messages")
    ({'queue': 'orders'}, None)
    """

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, path: str, route: Route) -> None:
        """There is this route at the path."""
        node, names = self._root, []
        for segment in path.split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.wild = node.wild or _Node()
                node = node.wild
            else:
                node = node.children.setdefault(segment, _Node())
        assert node.route is None, f"{path} is there twice"
        node.route, node.names = route, names

    def find(self, path: str) -> tuple[Route, Parameters] | None:
        """The route at a path, and what stands for its names."""
        values: list[str] = []
        node = _find(self._root, path.split("/"), 0, values)
        if node is None or node.route is None:
            return None
        return node.route, dict(zip(node.names, values, strict=True))


def _find(node: _Node, segments: list[str], at: int, values: list[str]) -> _Node | None:
    """Segments that a path names come before those that stand for anything."""
    if at == len(segments):
        return node if node.route is not None else None
    segment = segments[at]
    child = node.children.get(segment)
    if child is not None:
        found = _find(child, segments, at + 1, values)
        if found is not None:
            return found
    if node.wild is None or not segment:
        return None
    values.append(segment)
    found = _find(node.wild, segments, at + 1, values)
    if found is None:
        values.pop()
    return found
