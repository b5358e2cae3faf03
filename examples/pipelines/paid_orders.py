"""Orders joined with payments that came within ten minutes. What arrives later than that is a dead letter, not lost.

Spark leaves out, without a word, rows that are older than the watermark. So a row's age at its arrival is checked
before: `_message.timestamp` is when the queue took it. What passes can never be behind the watermark, which is a minute
wider, because clocks differ.
"""

from pyspark import pipelines as dp
from pyspark.sql.functions import expr

from penstock.pipelines import checked, messages, queue, queue_sink

# ruff: noqa: F821  (every pipeline has `spark`)

CHECKS = {
    "it came within 10 minutes": "at >= _message.timestamp - interval 10 minutes",
    "it is not from the future": "at <= _message.timestamp + interval 1 minute",
}


@checked(
    parse="json",
    schema="order_id bigint, amount double, at timestamp",
    checks=CHECKS,
    dead_letters="shop.orders.dead",
    watermark=("at", "11 minutes"),
)
def orders():
    return queue("shop.orders")


@checked(
    parse="json",
    schema="order_id bigint, paid double, at timestamp",
    checks=CHECKS,
    dead_letters="shop.payments.dead",
    watermark=("at", "11 minutes"),
)
def payments():
    return queue("shop.payments")


dp.create_sink("paid", "penstock", queue_sink("shop.paid"))


@dp.append_flow(target="paid")
def paid_orders():
    ordered = spark.readStream.table("orders").alias("o")
    paid = spark.readStream.table("payments").alias("p")
    near = expr("o.order_id = p.order_id and p.at between o.at and o.at + interval 10 minutes")
    return messages(ordered.join(paid, near).select("o.order_id", "amount", "paid"), key="order_id")
