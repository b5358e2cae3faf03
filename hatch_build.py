"""How a wheel is built: with the hot half compiled, if PENSTOCK_COMPILE=1 says so.

`make wheel` says so, and so does the workflow that publishes. Without it, and from a source distribution on a machine
without a C compiler, the wheel is plain Python: the same code, slower.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILER = ["mypy[mypyc]>=1.11", "setuptools>=70"]


class CompileHook(BuildHookInterface):
    """Puts the compiled modules beside their sources."""

    def dependencies(self) -> list[str]:
        """The compiler, and what the package imports: its types are compiled in."""
        if not _is_wanted():
            return []
        if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):  # before minutes of downloads
            raise SystemExit("PENSTOCK_COMPILE=1 needs a C compiler, such as gcc. Without it, unset PENSTOCK_COMPILE")
        return [*COMPILER, *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what came of it."""
        if not _is_wanted() or version == "editable":
            return
        sys.path.insert(0, self.root)
        from tools import compile as compiler

        compiler.main([])
        build_data["pure_python"], build_data["infer_tag"] = False, True
        for library in compiler.OUTPUT.rglob("*.so"):
            build_data["force_include"][str(library)] = str(library.relative_to(compiler.OUTPUT))


def _is_wanted() -> bool:
    return os.environ.get("PENSTOCK_COMPILE") == "1"
