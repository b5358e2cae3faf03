"""What every test shares: how hard Hypothesis tries."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Shared machines are slow at times; a slow example is no failure. CI finds the same examples every time, developers
# find new ones.
settings.register_profile("developer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("developer"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
