"""The root file system of the image: Python, an environment, the libraries that these load, and no more.

    python tools/image_root.py /penstock /image    # as the Dockerfile says it, in the stage that builds

There is no shell, no package manager and no pip in it. What is copied keeps its path. Which libraries are needed, the
dynamic linker says.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

UNUSED = ("config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo", "*-packages")
"""Of the standard library: what serves developers, and what other programs have installed."""
SETTINGS = ("/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ssl/openssl.cnf", "/usr/lib/ssl")
"""How libraries are found, and the authorities of certificates, which are in /etc/ssl/certs."""
MERGED = ("bin", "lib", "lib64", "sbin")
"""Of these, Debian has links into /usr."""
FILES = {
    "etc/passwd": "root:x:0:0::/:/sbin/nologin\npenstock:x:10001:10001::/data:/sbin/nologin\n",
    "etc/group": "root:x:0:\npenstock:x:10001:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def main(environment: Path, image: Path) -> None:
    """Make the directory."""
    image.mkdir()
    for name in MERGED:
        if Path("/", name).is_symlink():
            (image / name).symlink_to(Path("/", name).readlink())
            (image / name).resolve().mkdir(parents=True)
    copy(environment, image)
    for path in links(environment / "bin" / "python"):
        copy(path, image)
    library = Path(sysconfig.get_path("stdlib"))
    copy(library, image, ignore=UNUSED)
    compileall.compile_dir(image / library.relative_to("/"), stripdir=str(image), quiet=1)  # nobody can do it later
    for name in SETTINGS:
        copy(Path(name), image)
    copy(Path("/etc/ssl/certs"), image, keeps_links=False)
    for path in libraries(image):
        copy(path, image, keeps_links=False)
    subprocess.run(["ldconfig", "-r", image], check=True)
    (image / "tmp").mkdir()
    (image / "tmp").chmod(0o1777)
    for name, text in FILES.items():
        (image / name).write_text(text)


def copy(path: Path, image: Path, *, ignore: Iterable[str] = (), keeps_links: bool = True) -> None:
    """A file or a directory, at its own path. Links stay links, or become what they lead to."""
    to = image / path.relative_to("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        left_out = shutil.ignore_patterns(*ignore)
        shutil.copytree(path, to, keeps_links, left_out, ignore_dangling_symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(path, to, follow_symlinks=not keeps_links)


def links(path: Path) -> Iterator[Path]:
    """What a link leads to, one after the other, to the file."""
    while path.is_symlink():
        path = Path(os.path.normpath(path.parent / path.readlink()))
        yield path


def libraries(image: Path) -> set[Path]:
    """What the programs and libraries in there load from outside of it, the dynamic linker included."""
    found: set[Path] = set()
    for each in image.rglob("*"):
        if each.is_file() and not each.is_symlink() and each.open("rb").read(4) == b"\x7fELF":
            said = subprocess.run(["ldd", each], capture_output=True, text=True).stdout
            found |= {Path(os.path.normpath(name)) for name in re.findall(r"(/\S+) \(0x", said)}
    return {path for path in found if not path.is_relative_to(image)}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
