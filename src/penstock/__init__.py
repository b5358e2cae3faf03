"""Penstock: a message queue that lives in your process and in one directory.

>>> import penstock
>>> with penstock.open(":memory:") as ps:
...     ps.queue("orders").send(b"hello").sequence
...     while message := ps.queue("orders").receive():
...         with message:
...             message.body
0
b'hello'

`open` is for threads, `open_async` for tasks; both give the same API. Times are seconds, bodies are bytes.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


def _build() -> str:
    """Which build this is: with the hot half `"compiled"`, or `"plain Python"`, which does the same more slowly."""
    hot = find_spec("penstock.core.broker")
    return "plain Python" if hot is None or str(hot.origin).endswith(".py") else "compiled"


if TYPE_CHECKING:
    from penstock.api import *  # noqa: F403
    from penstock.api import __all__ as __all__
else:
    # The names come from penstock.api with the first one that somebody asks for. Until then nothing is loaded:
    # `penstock --help`, and whoever imports one module of this package, need not wait for numpy.

    def __getattr__(name: str) -> Any:
        # `from penstock import serve` asks for an attribute before it looks for a module.
        if (name.startswith("__") and name != "__all__") or find_spec(f"penstock.{name}") is not None:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        api = import_module("penstock.api")
        names = {each: getattr(api, each) for each in api.__all__} | {"__all__": [*api.__all__, "__version__"]}
        if name not in names:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        globals().update(names)
        return names[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("penstock.api").__all__})
