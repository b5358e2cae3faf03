"""`make interop`: Penstock between NSQ's own programs. Not part of `make test`: it needs Go, and takes minutes."""

from __future__ import annotations

import os

if not os.environ.get("INTEROP"):
    collect_ignore_glob = ["test_*.py"]
