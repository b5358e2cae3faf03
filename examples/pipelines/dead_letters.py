"""Dead letters by reason: which errors there are, how many of each, how old they are, and which to redrive first.

`penstock redrive work.jobs.dead --error "..."` sends those of one reason back.
"""

from pyspark import pipelines as dp
from pyspark.sql.functions import regexp_replace

from penstock.pipelines import queue

# ruff: noqa: F821  (every pipeline has `spark`)


@dp.table
def letters():
    dead = queue("work.jobs.dead", includeDeadLetters=True)
    told = dead.selectExpr("offset", "timestamp", "attempts", "deadOrigin.queue as origin", "deadReason")
    return told.withColumn("reason", regexp_replace("deadReason", r"\d+", "#"))


@dp.materialized_view
def by_reason():
    return spark.sql("""
        select reason, origin, count(*) as letters, max(attempts) as attempts_max, min(timestamp) as oldest
        from letters group by reason, origin order by letters desc""")
