"""Authorities and certificates for tests, made by openssl: NAME.pem and NAME.key in a directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def _openssl(directory: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=directory, check=True, capture_output=True)


def make_authority(directory: Path, name: str) -> None:
    """An authority."""
    _openssl(directory, f"req -x509 {_KEY} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem")


def make_certificate(directory: Path, name: str, authority: str) -> None:
    """A certificate that an authority has signed."""
    _openssl(directory, f"req {_KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr")
    signed = f"x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial"
    _openssl(directory, f"{signed} -days 2 -out {name}.pem")
