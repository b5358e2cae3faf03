"""Programs out of Debian's packages, without touching the system: `program("redis-server")`.

Benchmarks and tests want other people's servers: PostgreSQL, Redis, RabbitMQ, NATS. One that is on this machine is
used as it is. Otherwise the package and those of its dependencies that are not installed are downloaded by apt-get and
unpacked by dpkg into a directory of their own, which is kept: nothing is installed, no script of a package is run, and
it works for root and for anybody else. Programs find their libraries through `LD_LIBRARY_PATH`, which comes with them.

apt-get reads the machine's lists of packages. Where these are missing or out of date, it gets its own ones, into a
state directory beside the unpacked packages.

By hand: `python -m tools.debian redis-server` prints where the program is, and what to put into its environment.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_PLACES = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/lib/postgresql/*/bin", "usr/lib/rabbitmq/bin", "usr/lib/chromium")
"""Where packages put programs; some are not on anybody's PATH. Of several the last counts: the ones before may be
scripts that look for it at a fixed place."""
_LIBRARIES = ("usr/lib/*-linux-*", "lib/*-linux-*", "usr/lib/*-linux-*/*", "usr/lib")
_COMMAND_SECONDS_MAX = 300


class DebianError(RuntimeError):
    """A program can be neither found nor got; the text says why, and what to do."""


@dataclass(frozen=True)
class Program:
    """A program that can be run: `subprocess.run([program.path, ...], env=program.environment)`."""

    path: Path
    root: Path = Path("/")
    """The directory that stands for `/` of the packages it came from."""
    extra: dict[str, str] = field(default_factory=dict)
    """What its environment needs besides this process's own."""

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, and what the program needs to find its libraries and its companions."""
        return {**os.environ, **self.extra}

    def companion(self, name: str) -> Program:
        """Another program of the same packages: `initdb` beside `postgres`."""
        found = _find(self.root, name)
        if found is None:
            raise DebianError(f"the packages of {self.path.name} hold no program {name}")
        return Program(found, self.root, self.extra)


def program(package: str, name: str | None = None, *also: str) -> Program:
    """The program `name` (else named as its package), from this machine or out of Debian's packages.

    `also` names more packages that are needed, which the package itself does not ask for.
    """
    name = name or package
    installed = _find(Path("/"), name)
    if installed is not None:
        return Program(installed)
    root = unpacked(package, *also)
    found = _find(root, name)
    if found is None:
        raise DebianError(f"package {package} holds no program {name}: look into {root}")
    return Program(found, root, _environment(root))


def unpacked(*packages: str) -> Path:
    """A directory with these packages, and what they need and this machine lacks. Made at the first call, then kept."""
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise DebianError(f"{tool} is not here: install {' '.join(packages)} by this system's own means")
    home = cache_directory() / platform.machine() / "+".join(packages)
    root = home / "root"
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home.parent):
        if not (home / "complete").exists():
            shutil.rmtree(root, ignore_errors=True)
            _unpack(_download(packages, home), root)
            (home / "complete").touch()
    return root


def cache_directory() -> Path:
    """Where unpacked packages are kept: root's are where others may run them, since some servers refuse to be root."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "penstock" / "debian"
    return (Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache") / "penstock" / "debian"


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One process at a time: the others find the work done."""
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- apt-get and dpkg --


def _download(packages: tuple[str, ...], home: Path) -> list[Path]:
    """The packages' files. The machine's own lists first; then fresh ones, if these do not serve."""
    try:
        return _download_with((), packages, home)
    except DebianError:
        own_lists = _own_state(home.parent / "state")
        _run(["apt-get", *own_lists, "update"], home)
        return _download_with(own_lists, packages, home)


def _download_with(options: tuple[str, ...], packages: tuple[str, ...], home: Path) -> list[Path]:
    wanted = _missing(options, packages, home)
    files = home / "files"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    _run(["apt-get", *options, "-o", "APT::Sandbox::User=root", "download", *wanted], files)
    return sorted(files.glob("*.deb"))


def _missing(options: tuple[str, ...], packages: tuple[str, ...], home: Path) -> list[str]:
    """`name=version` of each package that an installation would install."""
    simulate = ["--simulate", "--no-install-recommends", "-o", "Debug::NoLocking=1", "install"]
    lines = _run(["apt-get", *options, *simulate, *packages], home).splitlines()
    wanted = [_name_and_version(line) for line in lines if line.startswith("Inst ")]
    if not wanted:
        raise DebianError(f"{' '.join(packages)}: installed already, but the program is not where it is looked for")
    return wanted


def _name_and_version(line: str) -> str:
    """What a line of a simulated installation is about.

    >>> _name_and_version("Inst redis-tools [5:6.0] (5:7.0.15-1 Debian:12/stable [amd64]) []")
    'redis-tools=5:7.0.15-1'
    """
    return f"{line.split()[1]}={line.partition('(')[2].split()[0]}"


def _own_state(state: Path) -> tuple[str, ...]:
    for part in ("lists/partial", "cache/archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    settings = {
        "Dir::State": state,
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",
    }
    return tuple(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))


def _unpack(files: list[Path], root: Path) -> None:
    root.mkdir(parents=True)
    for file in files:
        _run(["dpkg", "-x", str(file), str(root)], root)
        file.unlink()
    root.chmod(0o755)


def _run(command: list[str], directory: Path) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        ended = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=_COMMAND_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        raise DebianError(f"`{' '.join(command)}` took more than {_COMMAND_SECONDS_MAX} seconds") from None
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip()
        raise DebianError(f"`{' '.join(command)}` failed: {said}")
    return ended.stdout


# -- what was unpacked --


def _find(root: Path, name: str) -> Path | None:
    """The program of this name below a root; the newest version, where several are."""
    on_path = shutil.which(name) if root == Path("/") else None
    if on_path is not None:
        return Path(on_path)
    found = [path for place in _PLACES for path in sorted(root.glob(f"{place}/{name}")) if os.access(path, os.X_OK)]
    return found[-1] if found else None


def _environment(root: Path) -> dict[str, str]:
    programs = [str(root / place) for place in _PLACES[:4]]
    libraries = [str(path) for pattern in _LIBRARIES for path in sorted(root.glob(pattern)) if _holds_libraries(path)]
    paths = {"PATH": programs, "LD_LIBRARY_PATH": libraries}
    return {
        name: os.pathsep.join([*found, *filter(None, [os.environ.get(name)])]) for name, found in paths.items() if found
    }


def _holds_libraries(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.so*"))


def main() -> None:
    """Print where a program is, and its environment, for a shell."""
    try:
        found = program(*sys.argv[1:])
    except DebianError as error:
        raise SystemExit(f"debian: {error}") from None
    for name, value in found.extra.items():
        print(f"export {name}={value}")
    print(found.path)


if __name__ == "__main__":
    main()
