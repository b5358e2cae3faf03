"""Report: what `rollup` has counted, as one HTML page with plots. No Spark, no script, nothing from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.core.errors import NotFound

QUEUES_MAX = 50
_COUNTS = ("sent", "received", "acked", "retries", "expired", "dead")
_STYLE = """
:root { --ink: #1d2733; --soft: #66748a; --line: #dfe5ec; --page: #f6f8fa; --card: #ffffff;
  --c0: #2266cc; --c1: #1b9e77; --c2: #8e5bd0; --c3: #d1495b; --c4: #e08e0b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaf1; --soft: #93a1b5; --line: #2d3845; --page: #11171e;
  --card: #1a222c; --c0: #6aa5ff; --c1: #4cc9a0; --c2: #b58cf0; --c3: #f0788a; --c4: #f2b04a; } }
* { box-sizing: border-box } body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px } h1 { font-size: 26px; margin: 0 0 4px }
h2 { font-size: 19px; margin: 40px 0 12px; overflow-wrap: anywhere } p { color: var(--soft); margin: 0 0 20px }
table { border-collapse: collapse; width: 100%; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; overflow: hidden; font-variant-numeric: tabular-nums }
th, td { padding: 7px 12px; text-align: right; border-top: 1px solid var(--line); white-space: nowrap }
th { font-weight: 600; color: var(--soft); border-top: 0; font-size: 13px } td:first-child, th:first-child
  { text-align: left } .scroll { overflow-x: auto } .bad { color: var(--c3); font-weight: 600 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); gap: 16px }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px 8px }
figcaption { font-weight: 600; font-size: 14px } .unit { color: var(--soft); font-weight: 400 }
.legend { display: flex; gap: 14px; flex-wrap: wrap; font-size: 12.5px; color: var(--soft) }
.legend i { display: inline-block; width: 12px; height: 3px; border-radius: 2px; margin-right: 5px;
  vertical-align: 3px }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--soft); font-size: 11px }
.grid { stroke: var(--line); stroke-width: 1 } .plot { fill: none; stroke-width: 1.8; stroke-linejoin: round }
"""


@dataclass(frozen=True)
class QueueHistory:
    """The windows of one queue, in order."""

    queue: str
    rows: list[dict[str, Any]]

    def total(self, name: str) -> float:
        """Over all windows."""
        return float(sum(row[name] or 0 for row in self.rows))

    def worst(self, name: str) -> float | None:
        """The largest value of any window."""
        return max((row[name] for row in self.rows if row[name] is not None), default=None)


def report(table: str | Path, to: str | Path, *, queues: Sequence[str] = ()) -> Path:
    """Draw the table that `rollup` keeps as a page. Of all queues, or of these; the busiest first."""
    histories = _histories(Path(table), queues)
    target = Path(to)
    target.parent.mkdir(parents=True, exist_ok=True)
    lost = float(sum(row["lost_events"] or 0 for row in _read(Path(table))))
    target.write_text(page(histories, lost=lost), encoding="utf-8")
    return target


def _read(table: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    files = sorted((table / "windows").glob("date=*/*.parquet"))
    if not files:
        raise NotFound(f"{table} has no windows: `penstock pipeline run rollup --table {table}` makes them")
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: (row["queue"], row["start"]))


def _histories(table: Path, queues: Sequence[str]) -> list[QueueHistory]:
    by_queue: dict[str, list[dict[str, Any]]] = {}
    for row in _read(table):
        if row["queue"] and (not queues or row["queue"] in queues):
            by_queue.setdefault(row["queue"], []).append(row)
    found = [QueueHistory(queue, rows) for queue, rows in by_queue.items()]
    return sorted(found, key=lambda each: -(each.total("sent") + each.total("received")))


def page(histories: Sequence[QueueHistory], *, lost: float = 0.0) -> str:
    """The whole page."""
    starts = [row["start"] for each in histories for row in each.rows]
    ends = [row["end"] for each in histories for row in each.rows]
    span = f"{_time(min(starts))} to {_time(max(ends))} UTC" if starts else "nothing happened"
    missing = f' <span class="bad">{lost:,.0f} events are missing.</span>' if lost else ""
    shown = histories[:QUEUES_MAX]
    more = f"<p>{len(histories) - len(shown)} more queues are in the table.</p>" if len(histories) > len(shown) else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Penstock report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>Penstock report</h1>"
        f"<p>{span}. Made {_time(datetime.now(UTC))} UTC.{missing}</p>"
        f"{_summary(histories)}{''.join(map(_section, shown))}{more}</main></body></html>\n"
    )


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M")


def _summary(histories: Iterable[QueueHistory]) -> str:
    heads = ("queue", *_COUNTS, "receive p99", "ack p99")
    rows = "".join(_summary_row(each) for each in histories)
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _summary_row(each: QueueHistory) -> str:
    cells = [f"<td>{html.escape(each.queue)}</td>"]
    for name in _COUNTS:
        value = each.total(name)
        style = ' class="bad"' if name == "dead" and value else ""
        cells.append(f"<td{style}>{value:,.0f}</td>")
    cells += [f"<td>{milliseconds(each.worst(f'{name}_p99_ms'))}</td>" for name in ("receive", "ack")]
    return f"<tr>{''.join(cells)}</tr>"


def milliseconds(value: float | None) -> str:
    """A time as people read it.

    >>> milliseconds(12.4), milliseconds(2_500.0), milliseconds(180_000.0), milliseconds(None)
    ('12 ms', '2.5 s', '3.0 min', '')
    """
    if value is None:
        return ""
    if value < 1_000:
        return f"{value:.0f} ms"
    return f"{value / 1_000:.1f} s" if value < 120_000 else f"{value / 60_000:.1f} min"


def _section(each: QueueHistory) -> str:
    plots = (
        _figure("Throughput", "messages/s", each, [("sent", "sent"), ("received", "received"), ("acked", "acked")]),
        _figure("Send to first receive", "ms", each, _times("receive")),
        _figure("Send to ack", "ms", each, _times("ack")),
        _figure(
            "Trouble", "messages", each, [("retries", "retries"), ("expired", "expired"), ("dead letters", "dead")]
        ),
    )
    return f'<section><h2>{html.escape(each.queue)}</h2><div class="plots">{"".join(plots)}</div></section>'


def _times(name: str) -> list[tuple[str, str]]:
    return [(short, f"{name}_{short}_ms") for short in ("p50", "p95", "p99")]


_COLOURS = {"Throughput": (0, 1, 2), "Trouble": (4, 2, 3)}


def _figure(title: str, unit: str, each: QueueHistory, columns: list[tuple[str, str]]) -> str:
    per_s = unit == "messages/s"
    colours = _COLOURS.get(title, (1, 4, 3))
    rows = each.rows if unit == "ms" else _with_silence(each.rows)
    series = [
        Series(label, f"var(--c{colour})", [_point(row, column, per_s) for row in rows])
        for (label, column), colour in zip(columns, colours, strict=True)
    ]
    marks = "".join(f'<span><i style="background:{one.colour}"></i>{one.label}</span>' for one in series)
    head = f'<figcaption>{title} <span class="unit">{unit}</span></figcaption>'
    return f'<figure>{head}<div class="legend">{marks}</div>{lines_svg(series, title)}</figure>'


def _with_silence(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Windows in which nothing happened are not in the table: counts are 0 there, from the first to the last one."""
    filled = rows[:1]
    for before, row in pairwise(rows):
        length = before["end"] - before["start"]
        silent = dict.fromkeys(_COUNTS, 0.0)
        if row["start"] - before["end"] >= length:
            filled.append({**silent, "start": before["end"], "end": before["end"] + length})
        if row["start"] - before["end"] >= 2 * length:
            filled.append({**silent, "start": row["start"] - length, "end": row["start"]})
        filled.append(row)
    return filled


def _point(row: dict[str, Any], column: str, per_s: bool) -> tuple[float, float | None]:
    seconds = (row["end"] - row["start"]).total_seconds()
    value = row[column]
    middle = row["start"].timestamp() + seconds / 2
    return middle, None if value is None else value / seconds if per_s else float(value)


# -- lines over time as SVG --------------------------------------------------------------------------------------------

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
