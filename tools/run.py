"""Run `penstock` from this checkout: `python -m tools.run ARGUMENTS`.

Runs the compiled package if `make compile` has made one of these very sources, and the sources otherwise. The tools of
development are not needed.
"""

from __future__ import annotations

import os
import sys

from tools.compile import OUTPUT, SOURCES, is_up_to_date

PLAIN = "Running from the sources, in plain Python. `make compile` makes a faster build, in a few minutes."


def main(arguments: list[str]) -> None:
    """Become `penstock`."""
    is_compiled = is_up_to_date()
    package = OUTPUT if is_compiled else SOURCES
    if arguments[:1] == ["serve"]:
        print("Running the compiled build." if is_compiled else PLAIN, flush=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    os.execv(sys.executable, [sys.executable, "-m", "penstock", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
