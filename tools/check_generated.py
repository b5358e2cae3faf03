"""Whether everything that is generated is what the sources make of it now: `python -m tools.check_generated`.

Names what is not, and the command that writes it. Tests say the same; this is quicker, for a hook before a commit.
"""

from __future__ import annotations

import sys

from docs import draw
from tools import generate_console_types, generate_settings, generate_sync


def outdated() -> list[str]:
    """What is not up to date, and what to run."""
    found = []
    stored = {path.name: path.read_text() for path in generate_sync.TARGET.glob("*.py")}
    if stored != generate_sync.generated():
        found.append("src/penstock/client/sync: python -m tools.generate_sync")
    if generate_settings.TARGET.read_text() != generate_settings.generated():
        found.append("src/penstock/client/queue_settings.py: python -m tools.generate_settings")
    if generate_console_types.TARGET.read_text() != generate_console_types.generated():
        found.append("console/src/schema.ts: python -m tools.generate_console_types, then make console")
    found += [
        f"docs/{page}: python -m docs.draw" for page in draw.PAGES if (draw.DOCS / page).read_text() != draw.drawn(page)
    ]
    return found


if __name__ == "__main__":
    lines = outdated()
    if lines:
        sys.exit("\n".join(lines))
