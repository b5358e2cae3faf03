"""Write what `create_queue` takes, as type checkers and editors see it: `python -m tools.generate_settings`.

`QueueConfig` declares every setting; the file made of it is `src/penstock/client/queue_settings.py`. A test fails when
the two do not fit.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

from penstock.core.queues.config import SETTINGS, QueueConfig
from penstock.core.settings import Declared

TARGET = Path(__file__).parent.parent / "src" / "penstock" / "client" / "queue_settings.py"

_HEAD = '''"""A queue's settings, for type checkers. Made from `QueueConfig` by `tools/generate_settings.py`."""

from __future__ import annotations

from typing import TypedDict

from penstock.client.times import Seconds
from penstock.core.queues.config import Backoff, Kind, PolicyName, Scope


class QueueSettings(TypedDict, total=False):
    """What `create_queue` and `configure` take. Lengths of time are seconds."""

'''
_WIDTH = 112


def generated() -> str:
    """The text of the module."""
    return _HEAD + "\n".join(map(_field, SETTINGS.values()))


def _field(each: Declared) -> str:
    about = textwrap.wrap(f'"""{each.setting.help}{_bounds(each)}"""', _WIDTH, break_long_words=False)
    return "".join(f"    {line}\n" for line in (f"{each.name}: {_annotation(each)}", *about))


def _annotation(each: Declared) -> str:
    """The type as it stands in `QueueConfig`, without what is said beside it."""
    found = ast.parse(QueueConfig.__annotations__[each.field], mode="eval").body
    assert isinstance(found, ast.Subscript) and isinstance(found.slice, ast.Tuple), each.field
    written = ast.unparse(found.slice.elts[0])
    return written.replace("int", "Seconds") if each.in_seconds else written


def _bounds(each: Declared) -> str:
    low, high = each.limits
    unit = f" {each.unit}" if each.unit else ""
    shown = [] if low is None or high is None else [f"From {low:,} to {high:,}{unit}."]
    if isinstance(each.default, int | str | bool | None) or each.in_seconds:
        shown.append(f"Default: {each.given(each.default)!r}.")
    return "".join(f" {sentence}" for sentence in shown)


if __name__ == "__main__":
    TARGET.write_text(generated())
