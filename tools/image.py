"""Build and try the image without a container engine: the Dockerfile's own steps, in directories, by chroot.

    python -m tools.image build DIRECTORY    # as root; --plain leaves out the compilation (minutes)
    python -m tools.image try DIRECTORY      # as root: run what was built, in a network of its own

`make image-test` does both. The Dockerfile is read, so that the two cannot drift apart: an instruction that is not
known here is an error. One thing is different: `python:3.13-slim` is made by debootstrap out of Debian's own Python of
that version, without documentation and translations, as the slim images are. So the image may differ by some megabytes.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tools.debian import DebianError, cache_directory, program

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "Dockerfile"
SUITES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
"""The release of Debian that has a Python."""
MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("python3", "python3-venv", "python3-pip", "ca-certificates")
HEADERS = ("python3-dev",)
"""A slim image has Python's headers, some 2 MB. Debian's package brings much more: only stages that build get it."""
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
NOT_IN_SLIM = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
SCRATCH = "scratch"
"""The base that has nothing in it."""
BYTES_MAX = 150_000_000
"""What the image may take on a disk."""
STEP_SECONDS_MAX = 1_800
START_SECONDS_MAX = 30
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_UNSHARE = shutil.which("unshare") or "unshare"
"""It enters a root directory as a user: nothing in there is needed for it, as `env` is after `chroot`."""


class ImageError(RuntimeError):
    """The image cannot be built, or does not do what it should; the text says what."""


# -- the Dockerfile ----------------------------------------------------------------------------------------------------


class Instruction(NamedTuple):
    """One instruction of a Dockerfile: `RUN`, and what it runs."""

    name: str
    rest: str


def instructions(path: Path) -> list[Instruction]:
    """What a Dockerfile says, without comments, each instruction on a line."""
    text = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE))
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


@dataclass
class Stage:
    """What a `FROM` begins: a root directory, and what the instructions said of running it."""

    base: str
    name: str
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0:0"
    health: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"

    def inside(self, command: Sequence[str], more: Mapping[str, str], user: str | None = None) -> list[str]:
        """A command line that runs `command` in here, with nothing of the caller's environment."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": path, "HOME": "/", **self.environment, **more}
        told = [f"{name}={value}" for name, value in environment.items()]
        uid, _, gid = (user or self.user).partition(":")
        enter = [_UNSHARE, f"--root={self.root}", f"--wd={self.directory}", f"--setuid={uid}", f"--setgid={gid}"]
        return ["env", "--ignore-environment", *told, *enter, *command]


def stages(
    path: Path, where: Path, given: Mapping[str, str] | None = None
) -> Iterator[tuple[Stage, list[Instruction]]]:
    """The stages of a Dockerfile, with the instructions of each that change files. What is said of running is read.

    `given` replaces the defaults of its arguments, as `--build-arg` does.
    """
    arguments: dict[str, str] = {}
    found: list[tuple[Stage, list[Instruction]]] = []
    for instruction in instructions(path):
        name, rest = instruction
        if name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = (given or {}).get(key, value)
            if found:  # an argument of a stage is a variable in it
                found[-1][0].environment[key] = arguments[key]
        elif name == "FROM":
            base, _, alias = re.sub(r"\$\{(\w+)\}", lambda each: arguments[each[1]], rest).partition(" AS ")
            found.append((Stage(base, alias, where / (alias or "image")), []))
        elif name in ("RUN", "COPY", "WORKDIR"):
            found[-1][1].append(instruction)
            if name == "WORKDIR":
                found[-1][0].directory = rest
        elif name == "ENV":
            stage = found[-1][0]
            for key, value in re.findall(r"(\w+)=(\S+)", rest):
                usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                stage.environment[key] = value.replace("$PATH", usual)
        elif name == "USER":
            found[-1][0].user = rest
        elif name == "VOLUME":
            found[-1][0].volumes.append(rest)
        elif name == "HEALTHCHECK":
            found[-1][0].health = json.loads(rest.partition(" CMD ")[2])
        elif name == "ENTRYPOINT":
            found[-1][0].entrypoint = json.loads(rest)
        elif name == "CMD":
            found[-1][0].command = json.loads(rest)
        elif name == "STOPSIGNAL":
            found[-1][0].stop_signal = rest
        elif name not in ("LABEL", "EXPOSE"):
            raise ImageError(f"{path.name} has {name}, which {Path(__file__).name} does not know: teach it")
    yield from found


# -- building ----------------------------------------------------------------------------------------------------------


def build(where: Path, *, compiled: bool, given: Mapping[str, str]) -> None:
    """Every stage, in a directory of its own below `where`."""
    where.mkdir(parents=True, exist_ok=True)
    made: dict[str, Path] = {}
    for stage, steps in stages(DOCKERFILE, where, given):
        shutil.rmtree(stage.root, ignore_errors=True)
        _run(
            ["cp", "--archive", "--reflink=auto", str(base(stage.base, *HEADERS[: bool(stage.name)])), str(stage.root)]
        )
        directory = "/"
        with mounted(stage.root, lends=stage.base != SCRATCH):
            for name, rest in steps:
                print(f"{stage.name or 'image'}: {name} {rest}", flush=True)
                if name == "WORKDIR":
                    directory = rest
                    (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
                elif name == "COPY":
                    _copy(rest, stage.root / directory.lstrip("/"), stage.root, made)
                else:
                    text = rest if compiled else rest.replace("PENSTOCK_COMPILE=1", "PENSTOCK_COMPILE=0")
                    step = Stage(stage.base, "", stage.root, directory=directory)
                    command = json.loads(text) if text.startswith("[") else ["/bin/sh", "-c", text]
                    _run(step.inside(command, {"PIP_CERT": str(AUTHORITIES)}))
        if stage.name:
            made[stage.name] = stage.root


def base(image: str, *more: str) -> Path:
    """A directory that stands for `python:X.Y-slim`, with more packages. Made at the first call, then kept."""
    if image == SCRATCH:
        empty = cache_directory() / SCRATCH
        (empty / "proc").mkdir(parents=True, exist_ok=True)
        return empty
    version = re.fullmatch(r"python:(3\.\d+)-slim", image)
    if version is None or version[1] not in SUITES:
        raise ImageError(f"{image}: known are {', '.join(f'python:{each}-slim' for each in SUITES)}")
    suite = SUITES[version[1]]
    root = cache_directory() / "+".join((f"{suite}-slim", *more))
    if (root / "complete").exists():
        return root / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    bootstrap = program("debootstrap")
    environment = {**bootstrap.environment, "DEBOOTSTRAP_DIR": str(bootstrap.root / "usr/share/debootstrap")}
    options = ["--variant=minbase", f"--include={','.join((*PACKAGES, *more))}"]
    # its scripts are the same for every release since 2008: that of sid serves for releases that it has not heard of
    script = bootstrap.root / "usr/share/debootstrap/scripts/sid"
    _run([str(bootstrap.path), *options, suite, str(root / "root"), MIRROR, str(script)], environment)
    for name in NOT_IN_SLIM:
        _empty(root / "root" / name)
    (root / "root/usr/local/bin/python").symlink_to("/usr/bin/python3")
    # the lists of a release in the making are valid for a week, and a mirror may be behind
    (root / "root/etc/apt/apt.conf.d/valid-until").write_text('Acquire::Check-Valid-Until "false";\n')
    (root / "complete").touch()
    return root / "root"


def _copy(rest: str, directory: Path, root: Path, made: Mapping[str, Path]) -> None:
    words = rest.split()
    source = ROOT
    if words[0].startswith("--from="):
        source = made[words.pop(0).removeprefix("--from=")]
    *names, target = words
    into = root / target.lstrip("/") if target.startswith("/") else directory / target
    for name in names:
        path = source / name.lstrip("/")
        to = into / path.name if target.endswith("/") and path.is_file() else into  # of a directory, what is in it
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            ignored = shutil.ignore_patterns(*["__pycache__"] * (source == ROOT))  # as .dockerignore says
            shutil.copytree(path, to, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy2(path, to)


@contextmanager
def mounted(root: Path, *, lends: bool = True) -> Iterator[None]:
    """With `/proc`, this machine's name servers and its certificate authorities, as an engine lends them to a build."""
    lent = {root / "etc/resolv.conf": Path("/etc/resolv.conf"), root / str(AUTHORITIES).lstrip("/"): AUTHORITIES}
    lent = lent if lends else {}
    _run(["mount", "-t", "proc", "proc", str(root / "proc")])
    own = {path: path.read_bytes() if path.exists() else None for path in lent}
    try:
        for path, source in lent.items():
            path.write_bytes(source.read_bytes())
        yield
    finally:
        for path, content in own.items():
            path.unlink() if content is None else path.write_bytes(content)
        _run(["umount", str(root / "proc")])


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    ended = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=STEP_SECONDS_MAX,
    )
    if ended.returncode:
        raise ImageError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout[-4_000:]}")


def _empty(directory: Path) -> None:
    for each in directory.iterdir():
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()


def sizes(where: Path) -> dict[str, int]:
    """Bytes of the image as it lies on a disk, and as a pull transfers it."""
    stage = _image(where)

    size = subprocess.check_output(["du", "--bytes", "--summarize", str(stage.root)], text=True)
    packed = 0
    layers = ["tar", "--create", "--gzip", "--file=-", f"--directory={stage.root}", "."]
    with subprocess.Popen(layers, stdout=subprocess.PIPE) as packing:
        assert packing.stdout is not None
        while data := packing.stdout.read(1 << 20):
            packed += len(data)
    return {"on disk": int(size.split()[0]), "compressed": packed}


def _image(where: Path) -> Stage:
    return list(stages(DOCKERFILE, where))[-1][0]


# -- trying ------------------------------------------------------------------------------------------------------------


def try_image(where: Path) -> None:
    """Run the image as `docker run` does, and look at what it promises. In namespaces of its own; see `main`."""
    image = _image(where)
    _bring_up_loopback()
    _run(["mount", "-t", "proc", "proc", str(image.root / "proc")])
    (volume,) = image.volumes
    data = image.root / volume.lstrip("/")
    _empty(data)
    uid = int(image.user.partition(":")[0])

    _check(uid != 0 and data.stat().st_uid == uid, f"{volume} belongs to the user {uid}, who is not root")
    _check(data.stat().st_mode & 0o777 == 0o700, f"nobody else may look into {volume}")
    written = subprocess.run(image.inside(["touch", "/penstock/x"], {}), capture_output=True)
    _check(written.returncode != 0, "the user cannot write into the program's own directory")
    loads = subprocess.run(image.inside(["python", "-c", "import confluent_kafka.admin, ssl, numpy.linalg"], {}))
    _check(loads.returncode == 0, "what a node on Kafka loads is there")
    authorities = f"import ssl; ssl.create_default_context(cafile='{AUTHORITIES}').get_ca_certs()[0]"
    _check(subprocess.run(image.inside(["python", "-c", authorities], {})).returncode == 0, "and so are authorities")
    open_to_all = subprocess.run(
        image.inside([*image.entrypoint, *image.command], {}), capture_output=True, text=True, timeout=START_SECONDS_MAX
    )
    said = open_to_all.stderr.strip()
    _check(open_to_all.returncode == 2 and said.count("\n") == 0, f"without credentials it does not start: {said}")
    _check(not _is_healthy(image), "the health check fails while nothing serves")

    keys = {"PENSTOCK_ACCESS_KEY": "me", "PENSTOCK_SECRET_KEY": "secret"}
    with _running(image, keys) as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
        _check(f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status, f"the server runs as {uid}")
        _check("CapEff:\t0000000000000000" in status, "the server has no capabilities")
        _check(_is_healthy(image), f"the health check passes: {' '.join(image.health[:2])} …")
        _check(_status("GET", "/v1/queues") == 401, "a request without credentials is refused (401)")
        _check(_status("GET", "/v1/queues", "me:wrong") == 401, "a wrong secret is refused (401)")
        body = b'{"body": "kept"}'
        _check(_status("POST", "/v1/queues/orders/messages", "me:secret", body) in (200, 201), "a message is sent")
        owners = {each.lstat().st_uid for each in data.rglob("*")}
        _check(owners == {uid}, f"every file in {volume} belongs to {uid}")
    _check(process.returncode == 0, f"{image.stop_signal} ends it with status 0")
    with _running(image, keys) as process:
        got = _ask("POST", "/v1/queues/orders/receive", "me:secret")
        _check(b'"kept"' in got, "another container on the same volume has the message")
    _check(process.returncode == 0, "and ends, too")
    _empty(data)


@contextmanager
def _running(image: Stage, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(image.inside([*image.entrypoint, *image.command], more), stdin=subprocess.DEVNULL)
    try:
        started = time.monotonic()
        _until(lambda: _status("GET", "/readyz") == 200, process)
        print(f"     ready after {time.monotonic() - started:.2f} s")
        yield process
        process.send_signal(getattr(signal, image.stop_signal))
        process.wait(START_SECONDS_MAX)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ImageError(f"the server does not serve (status {process.poll()})")
        time.sleep(0.02)


def _is_healthy(image: Stage) -> bool:
    return subprocess.run(image.inside(image.health, {}), capture_output=True).returncode == 0


def _status(method: str, path: str, token: str = "", body: bytes | None = None) -> int:
    try:
        _ask(method, path, token, body)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
    return 200


def _ask(method: str, path: str, token: str = "", body: bytes | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Content-Type": "application/json"} if body else {}
    request = urllib.request.Request(f"http://127.0.0.1:9325{path}", body, headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        content: bytes = answer.read()
        return content


def _check(is_so: bool, claim: str) -> None:
    if not is_so:
        raise ImageError(f"NOT SO: {claim}")
    print(f"  ok {claim}", flush=True)


def _bring_up_loopback() -> None:
    """A new network has a loopback that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, or try."""
    parser = argparse.ArgumentParser(prog="image", description="Build and try the image without a container engine.")
    parser.add_argument("what", choices=("build", "try"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--plain", action="store_true", help="do not compile the hot half")
    parser.add_argument("--python", choices=SUITES, help="instead of the Dockerfile's own (--build-arg PYTHON=...)")
    chosen = parser.parse_args(arguments)
    if os.geteuid() != 0:
        sys.exit("THE IMAGE WAS NOT TRIED: chroot needs root")
    where = chosen.directory.resolve()
    try:
        if chosen.what == "build":
            build(where, compiled=not chosen.plain, given={"PYTHON": chosen.python} if chosen.python else {})
            found = sizes(where)
            for name, size in found.items():
                print(f"{name:16} {size / 1e6:7.1f} MB")
            if found["on disk"] > BYTES_MAX:
                raise ImageError(f"the image takes more than {BYTES_MAX / 1e6:.0f} MB on a disk")
        elif "PENSTOCK_IMAGE_INSIDE" not in os.environ:
            again = ["unshare", "--net", "--mount", sys.executable, "-m", "tools.image", "try", str(where)]
            sys.exit(subprocess.run(again, env={**os.environ, "PENSTOCK_IMAGE_INSIDE": "1"}).returncode)
        else:
            try_image(where)
    except (ImageError, DebianError) as error:
        sys.exit(f"image: {error}")


if __name__ == "__main__":
    main()
