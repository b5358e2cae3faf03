"""Clicks in windows of a minute: counts to a Delta table, and pages that fail too often to a queue."""

from pyspark import pipelines as dp
from pyspark.sql.functions import count, expr, window

from penstock.pipelines import checked, lake_sink, messages, queue, queue_sink

# ruff: noqa: F821  (every pipeline has `spark`)


@checked(
    parse="json",
    schema="at timestamp, page string, visitor string, status int",
    checks={"it has a page": "page is not null", "the status is one of HTTP": "status between 100 and 599"},
    dead_letters="clicks.dead",
    watermark=("at", "2 minutes"),
)
def clicks():
    return queue("clicks")


@dp.temporary_view
def per_minute():
    grouped = spark.readStream.table("clicks").groupBy(window("at", "1 minute"), "page")
    counted = grouped.agg(count("*").alias("views"), expr("count_if(status >= 500)").alias("errors"))
    return counted.selectExpr("window.start as minute", "page", "views", "errors")


dp.create_sink("lake", "penstock_lake", lake_sink("delta", "lake/clicks", partition_by="page"))
dp.create_sink("alerts", "penstock", queue_sink("clicks.alerts"))


@dp.append_flow(target="lake")
def to_lake():
    return spark.readStream.table("per_minute")


@dp.append_flow(target="alerts")
def to_alerts():
    return messages(spark.readStream.table("per_minute").where("errors * 4 > views"), key="page")
