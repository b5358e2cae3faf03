"""The package that the tests run on: the sources, or the wheel of `python -m tools.test --package`.

Processes that tests start get it on their PYTHONPATH. Otherwise they would run the sources whatever is tested.
"""

from __future__ import annotations

from pathlib import Path

import penstock

PACKAGE = Path(penstock.__file__).resolve().parents[1]
