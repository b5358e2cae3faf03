"""What every test shares: how hard Hypothesis tries, and that Ctrl-C means something."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# Shared machines are slow at times; a slow example is no failure. CI finds the same examples every time, developers
# find new ones.
settings.register_profile("developer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("developer"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

# A job in a shell's background ignores SIGINT, and so would every process that a test starts to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
