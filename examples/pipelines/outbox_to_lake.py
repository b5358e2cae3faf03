"""What a service has committed with its outbox, in a Delta table: each change once, and the newest of each order."""

from pyspark import pipelines as dp

from penstock.pipelines import checked, lake_sink, queue

# ruff: noqa: F821  (every pipeline has `spark`)


@checked(
    parse="json",
    schema="order_id bigint, version int, status string, amount double",
    checks={"the version counts from 1": "version >= 1"},
    dead_letters="shop.changes.dead",
)
def changes():
    return queue("shop.changes")


dp.create_sink("lake", "penstock_lake", lake_sink("delta", "lake/changes", partition_by="status"))


@dp.append_flow(target="lake")
def to_lake():
    return spark.readStream.table("changes")


@dp.table
def history():
    return spark.readStream.table("changes")


@dp.materialized_view
def newest():
    return spark.sql("""
        select order_id, max(version) as version, max_by(status, version) as status, max_by(amount, version) as amount
        from history group by order_id""")
