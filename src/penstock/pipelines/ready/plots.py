"""Lines over time as SVG: axes with round numbers, gaps where there is nothing, points without neighbours as dots."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

WIDTH, HEIGHT = 520, 200
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 10, 24
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400)
_GAP = 3.0
"""A pause of more than so many usual steps is a gap in the line."""


@dataclass(frozen=True)
class Series:
    """One line: points in time (seconds since 1970) with values; None where there is none."""

    label: str
    colour: str
    points: Sequence[tuple[float, float | None]]


def lines_svg(series: Sequence[Series], title: str) -> str:
    """A plot of some lines."""
    times = [at for each in series for at, _ in each.points]
    values = [value for each in series for _, value in each.points if value is not None]
    if not values:
        return _frame(title, f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">nothing here</text>')
    low_s, high_s = min(times), max(times)
    if high_s - low_s < 1:
        low_s, high_s = low_s - 30, high_s + 30
    scale = _Scale(low_s, high_s, nice_ceiling(max(values)))
    parts = [*_value_axis(scale), *_time_axis(scale)]
    for each in series:
        parts += _line(each, scale)
    return _frame(title, "".join(parts))


@dataclass(frozen=True)
class _Scale:
    low_s: float
    high_s: float
    top: float

    def x(self, at: float) -> float:
        return LEFT + (at - self.low_s) / (self.high_s - self.low_s) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)


def nice_ceiling(value: float) -> float:
    """The next round number, at which an axis may end.

    >>> nice_ceiling(0.0), nice_ceiling(7.2), nice_ceiling(130), nice_ceiling(2_100)
    (1.0, 8.0, 200.0, 2500.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0) if value <= step * power * 1.000001)


def short(value: float) -> str:
    """A number for an axis.

    >>> short(0.25), short(40.0), short(2_500.0), short(12_000_000.0)
    ('0.25', '40', '2.5k', '12M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _value_axis(scale: _Scale) -> Iterator[str]:
    for quarter in range(5):
        value = scale.top * quarter / 4
        y = scale.y(value)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{short(value)}</text>'


def _time_axis(scale: _Scale) -> Iterator[str]:
    span_s = scale.high_s - scale.low_s
    step_s = next((step for step in _STEPS_S if span_s / step <= 6), 86_400 * math.ceil(span_s / 86_400 / 6))
    at = math.ceil(scale.low_s / step_s) * step_s
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86_400 else "%m-%d"
    while at <= scale.high_s:
        text = datetime.fromtimestamp(at, UTC).strftime(form)
        yield f'<text x="{scale.x(at):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{text}</text>'
        at += step_s


def _line(each: Series, scale: _Scale) -> Iterator[str]:
    for run in _runs(each.points):
        places = [(scale.x(at), scale.y(value)) for at, value in run]
        if len(places) == 1:
            yield f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="2.6" fill="{each.colour}"/>'
            continue
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        yield f'<path class="plot" stroke="{each.colour}" d="{path}"/>'


def _runs(points: Sequence[tuple[float, float | None]]) -> Iterator[list[tuple[float, float]]]:
    """The points without those that have no value, cut where there is a gap."""
    known = [(at, value) for at, value in points if value is not None]
    steps = sorted(later - at for (at, _), (later, _) in pairwise(points))
    usual = steps[len(steps) // 2] if steps else 0.0
    run: list[tuple[float, float]] = []
    for point in known:
        if run and point[0] - run[-1][0] > _GAP * usual:
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def _frame(title: str, inside: str) -> str:
    label = html.escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inside}</svg>'
