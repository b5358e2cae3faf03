"""Write constraints.txt: the exact versions of all that developers install. `make lock`, with .venv's python.

pip finds the newest versions that fit together, and installs nothing. Only names and versions are kept: where they come
from is a matter of whoever installs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "constraints.txt"
HEAD = "# The versions that developers test with: `make venv` installs them, `make lock` writes them anew.\n"


def resolved(extras: str) -> str:
    """The text of constraints.txt, as pip would install the package with these extras now."""
    options = ("--quiet", "--disable-pip-version-check", "--dry-run", "--ignore-installed", "--report", "-")
    command = [sys.executable, "-m", "pip", "install", *options, "--editable", f"{ROOT}[{extras}]"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    found = [each["metadata"] for each in report["install"]]
    lines = (f"{each['name']}=={each['version']}\n" for each in found if each["name"] != "penstock-mq")
    return HEAD + "".join(sorted(lines, key=str.lower))


if __name__ == "__main__":
    TARGET.write_text(resolved(sys.argv[1]))
