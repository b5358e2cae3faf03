"""Ready pipelines: what most people want of queues and Spark. Each is a command of `cli/ready.py`.

Those that are flows are files in Spark's language here, told by parameters; the others end, and are functions. See
docs/ready-pipelines.md.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.pipelines.checkpoints import State
    from penstock.pipelines.definition import Pipeline

FILES = {name: Path(__file__).with_name(f"{name}.py") for name in ("archive", "rollup", "dedupe", "join")}


def ready_pipeline(ready: str, name: str, parameters: Mapping[str, str], beside: Path | None = None) -> Pipeline:
    """A ready pipeline that is a file, told its parameters. Its paths are relative to `beside`."""
    from penstock.pipelines.python_file import read_python

    pipeline = read_python(FILES[ready], name, parameters)
    return pipeline if beside is None else dataclasses.replace(pipeline, file=beside / FILES[ready].name)


def take_over(checkpoint: Path, state: State, query: str) -> Path:
    """Move the checkpoint that an earlier build has kept elsewhere to where this one looks for it."""
    wanted = Path(str(state.checkpoint(query)))
    if checkpoint.exists() and not wanted.exists():
        wanted.parent.mkdir(parents=True, exist_ok=True)
        os.replace(checkpoint, wanted)
    return wanted
