from __future__ import annotations

import time

import pytest

from penstock.server.clock import SystemClock


def test_the_clock_starts_at_the_wall_clocks_time() -> None:
    assert abs(SystemClock().now_ms() - time.time_ns() // 1_000_000) < 1_000


def test_setting_the_wall_clock_does_not_move_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= clock.now_ms() - before < 10_000
