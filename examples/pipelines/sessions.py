"""Visits: the clicks of a visitor with less than 30 minutes between them, by a processor that keeps state of its own.

Clicks may come in any order within the watermark: open visits are merged when a click fills the gap between two. A
visit is sent when the watermark is half an hour past its last click, so that no other can belong to it.
"""

from pyspark import pipelines as dp
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from penstock.pipelines import checked, messages, queue, queue_sink

# ruff: noqa: F821  (every pipeline has `spark`)

GAP_MS = 30 * 60 * 1000


@checked(
    parse="json",
    schema="at timestamp, visitor string, page string",
    checks={"it has a visitor": "visitor is not null"},
    dead_letters="visits.clicks.dead",
    watermark=("at", "5 minutes"),
)
def visitor_clicks():
    return queue("visits.clicks")


class Visits(StatefulProcessor):
    """The open visits of one visitor, as a list of (first click, last click, clicks)."""

    def init(self, handle):
        self.handle = handle
        self.open = handle.getListState("open", "began_ms bigint, ended_ms bigint, clicks bigint")

    def handleInputRows(self, key, rows, timerValues):
        visits = [tuple(each) for each in self.open.get()] if self.open.exists() else []
        visits += [(row.at_ms, row.at_ms, 1) for row in rows]
        merged = []
        for began_ms, ended_ms, clicks in sorted(visits):
            if merged and began_ms - merged[-1][1] < GAP_MS:
                before = merged.pop()
                merged.append((before[0], max(before[1], ended_ms), before[2] + clicks))
            else:
                merged.append((began_ms, ended_ms, clicks))
        self.keep(merged)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        now_ms = timerValues.getCurrentWatermarkInMs()
        visits = [tuple(each) for each in self.open.get()] if self.open.exists() else []
        over = [each for each in visits if each[1] + GAP_MS <= now_ms]
        self.keep([each for each in visits if each not in over])
        for began_ms, ended_ms, clicks in over:
            yield Row(visitor=key[0], began_ms=began_ms, seconds=(ended_ms - began_ms) // 1000, clicks=clicks)

    def keep(self, visits):
        for timer_ms in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer_ms)
        for _, ended_ms, _ in visits:
            self.handle.registerTimer(ended_ms + GAP_MS)
        if visits:
            self.open.put(visits)
        else:
            self.open.clear()


dp.create_sink("visits", "penstock", queue_sink("visits"))
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE = {"spark.sql.streaming.stateStore.providerClass": PROVIDER}


@dp.append_flow(target="visits", spark_conf=STATE)
def to_visits():
    clicks = spark.readStream.table("visitor_clicks").selectExpr("visitor", "at", "unix_millis(at) as at_ms")
    made = "visitor string, began_ms bigint, seconds bigint, clicks bigint"
    visits = clicks.groupBy("visitor").transformWithState(Visits(), made, "Append", "EventTime")
    return messages(
        visits.selectExpr("visitor", "timestamp_millis(began_ms) as began", "seconds", "clicks"), key="visitor"
    )
