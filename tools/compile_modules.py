"""Run by `tools/compile.py` in a process of its own: compiles the modules that its arguments name, where they are.

mypyc makes one C file for each module, and setuptools would give them to the C compiler one after the other; here every
processor gets one.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext


def compile_at_once(compiler: Any, sources: list[str], *arguments: Any, **options: Any) -> list[str]:
    """As the method it replaces: the object files of some sources."""
    names = ("output_dir", "macros", "include_dirs", "debug", "extra_preargs", "extra_postargs", "depends")
    given = dict(zip(names, arguments, strict=False)) | options
    _macros, objects, postargs, preprocessor, build = compiler._setup_compile(
        given.get("output_dir"),
        given.get("macros"),
        given.get("include_dirs"),
        sources,
        given.get("depends"),
        given.get("extra_postargs"),
    )
    flags = compiler._get_cc_args(preprocessor, given.get("debug", 0), given.get("extra_preargs"))

    def compile_one(name: str) -> None:
        source, suffix = build[name]
        compiler._compile(name, source, suffix, flags, postargs, preprocessor)

    with ThreadPool(int(os.environ.get("JOBS", "0")) or os.cpu_count() or 1) as pool:
        pool.map(compile_one, [name for name in objects if name in build], chunksize=1)
    return list(objects)


class BuildAtOnce(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Builds extensions, with all processors at work."""

    def build_extensions(self) -> None:
        compiler: Any = self.compiler
        compiler.compile = partial(compile_at_once, compiler)
        super().build_extensions()


def main() -> None:
    """Compile."""
    options = ["--ignore-missing-imports", "--python-executable", sys.executable]
    setup(
        name="penstock-compiled",
        packages=[],
        ext_modules=mypycify([*sys.argv[1:], *options], multi_file=True),
        cmdclass={"build_ext": BuildAtOnce},
        script_args=["--quiet", "build_ext", "--inplace"],
    )


if __name__ == "__main__":
    main()
