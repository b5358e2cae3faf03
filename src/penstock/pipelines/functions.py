"""Functions of the user: `module:function` found and looked at, and what a function reads, seen in its source.

Modules are looked for beside the pipeline's file first.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.pipelines.definition import Function
from penstock.pipelines.sql_names import tables_of


@contextlib.contextmanager
def importing_from(directory: Path) -> Iterator[None]:
    """Modules of this directory can be imported while the block runs, and later by what was imported."""
    path = str(directory.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)
    yield


def find_function(reference: str, directory: Path, inputs: int) -> Function:
    """The function that `module:function` names; ValueError says why there is none.

    >>> find_function("json:loads", Path("."), 1).reference
    'json:loads'
    >>> find_function("json.loads", Path("."), 1)
    Traceback (most recent call last):
        ...
    ValueError: 'json.loads' names no function: write module:function
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not name or not module_name:
        raise ValueError(f"{reference!r} names no function: write module:function")
    with importing_from(directory):
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise ValueError(
                f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}"
            ) from None
    call = getattr(module, name, None)
    if not callable(call):
        raise ValueError(f"there is no function {name!r} in the module {module_name!r} ({module.__file__})")
    takes_spark = _check_takes(call, reference, inputs)
    return Function(reference, call, takes_spark=takes_spark)


def _check_takes(call: Callable[..., Any], reference: str, inputs: int) -> bool:
    """Whether it has a parameter `spark`; ValueError if it cannot take so many frames."""
    signature = _signature(call)
    if signature is None:
        return False
    takes_spark = "spark" in signature.parameters
    try:
        signature.bind(*[None] * inputs, **({"spark": None} if takes_spark else {}))
    except TypeError as error:
        raise ValueError(f"{reference} cannot be called with {inputs} frame(s): {error}") from None
    return takes_spark


def _signature(call: Callable[..., Any]) -> inspect.Signature | None:
    with contextlib.suppress(TypeError, ValueError):
        return inspect.signature(call)
    return None


def named_function(call: Callable[..., Any]) -> tuple[Function, tuple[str, ...]]:
    """A decorated function, and the frames that it reads: by its parameters, by `.table("name")`, by `.sql("...")`."""
    signature = _signature(call)
    parameters = tuple(signature.parameters) if signature is not None else ()
    frames = tuple(name for name in parameters if name != "spark")
    calls = list(_calls_with_text(call))
    queues = tuple(text for name, text in calls if name == "queue")
    reference = f"{call.__module__}:{call.__qualname__}"
    function = Function(reference, call, True, frames, "spark" in parameters, queues)
    return function, tuple(dict.fromkeys((*frames, *_tables_in(calls))))


def _tables_in(calls: list[tuple[str, str]]) -> Iterator[str]:
    for name, text in calls:
        if name == "table":
            yield text.strip()
        elif name == "sql":
            yield from tables_of(text)


def _calls_with_text(call: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """What a function calls with texts: the last name of what is called, and each text."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            for given in node.args:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    yield name, given.value
