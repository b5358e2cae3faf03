"""Make the API for threads out of the API for tasks: `python -m tools.generate_sync`.

`src/penstock/client/aio` is written by hand; `src/penstock/client/sync` is that text without `async` and `await`. A
test fails when the two do not fit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parent.parent / "src" / "penstock" / "client"
SOURCE = CLIENT / "aio"
TARGET = CLIENT / "sync"

_REPLACED = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\bpenstock\.client\.aio\b", "penstock.client.sync"),
    (r"\bpenstock\.client\.task_workers\b", "penstock.client.thread_workers"),
)
_PACKAGE_DOCSTRING = (
    '"""The API for threads. Generated from `penstock.client.aio` by `tools/generate_sync.py`: change that."""\n'
)


def synchronous(text: str) -> str:
    """The text of a module, with nothing left to await.

    >>> synchronous("async def ack(self) -> AsyncMessage: return await self.call()")
    'def ack(self) -> Message: return self.call()'
    """
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text)
    return text


def generated() -> dict[str, str]:
    """File name -> text, formatted, of the package for threads."""
    texts = {path.name: synchronous(path.read_text()) for path in sorted(SOURCE.glob("*.py"))}
    texts["__init__.py"] = _PACKAGE_DOCSTRING
    return {name: _formatted(text) for name, text in texts.items()}


def _formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    sort_imports = [
        *ruff,
        "check",
        "--quiet",
        "--select=I",
        "--fix",
        "--stdin-filename=src/penstock/client/sync/x.py",
        "-",
    ]
    for command in (sort_imports, [*ruff, "format", "-"]):
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=CLIENT).stdout
    return text


def main() -> None:
    """Write the package for threads."""
    TARGET.mkdir(exist_ok=True)
    texts = generated()
    for path in TARGET.glob("*.py"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
