"""Do what a new user does: get Penstock, start it, and paste every command of README.md and of the first guide.

    python -m tools.new_user                      # an empty clone, and a wheel in an empty environment
    python -m tools.new_user --python python3.13  # with other Pythons; can be repeated
    python -m tools.new_user --compiled           # the wheel is the one that people get (minutes; needs a C compiler)
    python -m tools.new_user --debian 3.14        # a Python that is not here, in a chroot of Debian (as root)

By default every Python from 3.11 on that is on the PATH is tried. The clone holds what is committed. If the usual ports
are taken, others are, and the commands are pasted with those. Prints times and sizes. The first command that does not
do what its page says ends it with status 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.compat.server import PATIENCE_S, ROOT, until
from tests.docs.page import follow
from tests.docs.terminal import CLEAN, Terminal
from tools.servers import free_ports

PAGES = ("README.md", "docs/start/five-minutes.md")
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
VARIABLES = {
    "9324": "PENSTOCK_SQS_PORT",
    "9325": "PENSTOCK_HTTP_PORT",
    "4150": "PENSTOCK_NSQ_TCP_PORT",
    "4151": "PENSTOCK_NSQ_HTTP_PORT",
}
CLIENTS = ("awscli", "boto3", "pynsq")
"""What the pages tell the reader to install."""
INSTALL_SECONDS_MAX = 900
GREETING = "Ctrl-C"
"""What the server's last line says, once it listens."""
ENVIRONMENT = {name: value for name, value in CLEAN.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


class Disappointed(Exception):
    """A step did not do what a new user was told it would."""


@dataclass
class Stopwatch:
    """Prints what each step took."""

    title: str

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step, and its time."""
        started = time.monotonic()
        yield
        print(f"{self.title}: {what:52} {time.monotonic() - started:7.1f} s", flush=True)

    def size(self, what: str, path: Path) -> None:
        """How large a file or a directory is."""
        print(f"{self.title}: {what:52} {size_of(path) / 1e6:7.1f} MB", flush=True)


def size_of(path: Path) -> int:
    """The bytes of a file, or of everything below a directory; links count nothing."""
    if not path.is_dir():
        return path.stat().st_size
    return sum(each.lstat().st_size for each in path.rglob("*") if each.is_file() and not each.is_symlink())


def run(command: Sequence[str | Path], directory: Path, environment: Mapping[str, str] = ENVIRONMENT) -> str:
    """What a command prints; `Disappointed`, with all of it, if it fails."""
    ended = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
    )
    if ended.returncode:
        raise Disappointed(f"{' '.join(map(str, command))} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


def ports_to_take() -> dict[str, str]:
    """The usual ports, as the pages have them; others, by the usual ones, if any of them is taken."""
    try:
        for port in VARIABLES:
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", int(port)))
    except OSError:
        return dict(zip(VARIABLES, map(str, free_ports(len(VARIABLES))), strict=True))
    return {port: port for port in VARIABLES}


@contextmanager
def serving(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """The first terminal: a command that installs what it needs, then serves until Ctrl-C."""
    ports = ports_to_take()
    told = {VARIABLES[port]: taken for port, taken in ports.items()}
    out = directory / "first-terminal"
    with out.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**environment, **told},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(lambda: GREETING in out.read_text() or process.poll() is not None, INSTALL_SECONDS_MAX)
        if process.poll() is not None:
            raise Disappointed(f"{' '.join(command)} ended with {process.returncode}:\n{out.read_text()}")
        yield Terminal(directory, ports, out)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE_S)
        if "Traceback" in out.read_text():
            raise Disappointed(f"{' '.join(command)} printed\n{out.read_text()}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def paste(terminal: Terminal, watch: Stopwatch, environment: Mapping[str, str], pages: Sequence[str] = PAGES) -> None:
    """The second terminal: every command of the pages, in order."""
    for page in pages:
        with watch.step(f"every command of {page}"):
            try:
                follow(ROOT / page, terminal, environment=environment)
            except AssertionError as error:
                raise Disappointed(f"{page}: {error}") from None


def activated(directory: Path) -> dict[str, str]:
    """The environment of a terminal in which `.venv` comes first."""
    path = f"{directory / '.venv' / 'bin'}{os.pathsep}{ENVIRONMENT['PATH']}"
    return {**ENVIRONMENT, "PATH": path, "HOME": str(directory), "TERM": "dumb"}


def install(directory: Path, *what: str | Path) -> None:
    """`pip install` into `.venv`, at the versions that everybody tests with."""
    python = directory / ".venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--constraint", ROOT / "constraints.txt", *what], directory)


def clone(directory: Path) -> None:
    """What `git clone` gives: what is committed, and nothing else."""
    run(["git", "clone", "--quiet", str(ROOT), str(directory)], ROOT)


def try_clone(python: str, directory: Path, title: str) -> None:
    """From an empty clone: `make run`, then the pages."""
    watch = Stopwatch(f"clone, {title}")
    with watch.step("git clone"):
        clone(directory)
    watch.size("the clone", directory)
    with ExitStack() as running:
        with watch.step("make run, until it serves"):
            terminal = running.enter_context(serving(["make", "run", f"PYTHON={python}"], directory, ENVIRONMENT))
        watch.size("what it installed (.venv)", directory / ".venv")
        with watch.step(f"pip install {' '.join(CLIENTS)}"):
            install(directory, *CLIENTS)
        paste(terminal, watch, activated(directory))


def build_wheel(python: str, directory: Path, *, compiled: bool) -> Path:
    """A wheel of this checkout, as `python -m pip wheel` builds it."""
    environment = {**ENVIRONMENT, "PENSTOCK_COMPILE": "1" if compiled else "0"}
    pip = [python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run([*pip, "--wheel-dir", directory, str(ROOT)], directory, environment)
    (wheel,) = directory.glob("penstock_mq-*.whl")
    return wheel


def try_wheel(python: str, directory: Path, title: str, *, wheel: Path | None, compiled: bool) -> None:
    """From a wheel in an empty environment: `penstock serve`, then the pages."""
    watch = Stopwatch(f"wheel, {title}")
    directory.mkdir()
    if wheel is None:
        with watch.step("pip wheel, with the hot half compiled" if compiled else "pip wheel, plain Python"):
            wheel = build_wheel(python, directory, compiled=compiled)
    watch.size(wheel.name, wheel)
    run([python, "-m", "venv", str(directory / ".venv")], directory)
    with watch.step("pip install penstock-mq"):
        install(directory, wheel)
    watch.size("the environment", directory / ".venv")
    print(f"{watch.title}: {run([directory / '.venv/bin/penstock', '--version'], directory).strip()}")
    with ExitStack() as running:
        command = [".venv/bin/penstock", "serve", "--data", "./data"]
        with watch.step("penstock serve, until it serves"):
            terminal = running.enter_context(serving(command, directory, ENVIRONMENT))
        with watch.step(f"pip install {' '.join(CLIENTS)}"):
            install(directory, *CLIENTS)
        paste(terminal, watch, activated(directory))


DEBIAN_NEEDS = ("git", "make", "curl", "procps")
"""What the steps and the pages call, and a slim image does not have."""
COMPILER = ("gcc", "libc6-dev")


def in_debian(version: str, arguments: Sequence[str], *, compiled: bool) -> None:
    """Do all of it with a Python of another release of Debian: this tool, in a clone, in a chroot of that release."""
    from tools import image

    with tempfile.TemporaryDirectory(prefix="penstock-debian-") as temporary:
        root = Path(temporary, "root")
        base = image.base(f"python:{version}-slim", *(image.HEADERS if compiled else ()))
        run(["cp", "--archive", "--reflink=auto", base, root], ROOT)
        (root / "etc/pip.conf").write_text(f"[global]\ncert = {image.AUTHORITIES}\n")
        clone(root / "penstock")
        needs = " ".join((*DEBIAN_NEEDS, *(COMPILER if compiled else ())))
        steps = (
            f"apt-get update -qq && apt-get install -qq --yes --no-install-recommends {needs}",
            "git config --global --add safe.directory '*'",
            "python3 -m venv /tool",
            "/tool/bin/pip install --quiet --constraint /penstock/constraints.txt boto3 --editable /penstock",
        )
        environment = {**ENVIRONMENT, "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        with image.mounted(root):
            for step in steps:
                run(["chroot", root, "/bin/sh", "-c", step], ROOT, environment)
            again = f"cd /penstock && /tool/bin/python -m tools.new_user --python python3 {' '.join(arguments)}"
            if status := subprocess.run(["chroot", root, "/bin/sh", "-c", again], env=environment).returncode:
                sys.exit(status)


def pythons_found() -> list[str]:
    """Of each version in `PYTHONS` one that runs, by its path: on the PATH, else one that pyenv has installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [next(filter(_runs, [name, *sorted(map(str, pyenv.glob(f"*/bin/{name}")))]), None) for name in PYTHONS]
    return [path for name in found if name and (path := shutil.which(name))]


def _runs(python: str) -> bool:
    """Whether it is there, and more than a stand-in of pyenv for a version that is switched off."""
    path = shutil.which(python)
    return path is not None and subprocess.run([path, "--version"], capture_output=True).returncode == 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Try everything that is asked for, and say what was not."""
    parser = argparse.ArgumentParser(prog="new_user", description="Do what a new user does, and print times and sizes.")
    parser.add_argument("--python", action="append", help="a Python to try; default: every one on the PATH or of pyenv")
    parser.add_argument("--from", dest="kinds", choices=("clone", "wheel"), action="append", help="default: both")
    parser.add_argument("--wheel", type=Path, help="a wheel that is there already, instead of building one")
    parser.add_argument("--debian", metavar="VERSION", help="a Python of another release of Debian, in a chroot: 3.14")
    parser.add_argument("--compiled", action="store_true", help="build the wheel with the hot half compiled")
    chosen = parser.parse_args(arguments)
    if chosen.debian:
        passed = [f"--from={kind}" for kind in chosen.kinds or ()] + ["--compiled"] * chosen.compiled
        return in_debian(chosen.debian, passed, compiled=chosen.compiled)
    pythons = chosen.python or pythons_found()
    for python in pythons:
        version = run([python, "--version"], ROOT).strip()
        for kind in chosen.kinds or ("clone", "wheel"):
            with tempfile.TemporaryDirectory(prefix="penstock-new-user-") as temporary:
                directory = Path(temporary, "penstock")
                try:
                    if kind == "clone":
                        try_clone(python, directory, version)
                    else:
                        wheel = chosen.wheel and chosen.wheel.resolve()
                        try_wheel(python, directory, version, wheel=wheel, compiled=chosen.compiled)
                except Disappointed as error:
                    sys.exit(f"{kind}, {version}: {error}")
    missing = [name for name in PYTHONS if not chosen.python and not any(path.endswith(name) for path in pythons)]
    if missing:
        print(f"NOT TRIED, because neither the PATH nor pyenv has them: {', '.join(missing)}")


if __name__ == "__main__":
    main()
