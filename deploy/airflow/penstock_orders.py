"""Airflow: a pipeline each quarter of an hour, and one of its ranges again when a run is cleared or backfilled.

The scheduled run reads what has come since the last one. A run with `{"again": true}` in its configuration does the
messages of its own interval again, beside it. The connection `penstock` has the server's address, and its token as the
password.
"""

from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, CronDataIntervalTimetable

RANGE = " ".join(
    f"--{flag} {{{{ data_interval_{end}.strftime('%Y-%m-%dT%H:%M:%S') }}}}"
    for flag, end in (("since", "start"), ("until", "end"))
)
COMMAND = (
    "penstock pipeline run $PIPELINES/orders.yaml --state $PIPELINES/state"
    "{% if dag_run.conf.get('again') %} " + RANGE + "{% endif %}"
)

# With a plain cron line, the interval of a run in Airflow 3 is empty.
SCHEDULE = CronDataIntervalTimetable("*/15 * * * *", timezone="UTC")

with DAG("penstock_orders", schedule=SCHEDULE, start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1):
    BashOperator(
        task_id="run",
        bash_command=COMMAND,
        append_env=True,
        env={
            "PENSTOCK_URL": "{{ conn.penstock.schema }}://{{ conn.penstock.host }}:{{ conn.penstock.port }}",
            "PENSTOCK_TOKEN": "{{ conn.penstock.password or '' }}",
            "PIPELINES": "{{ var.value.get('penstock_pipelines', '/etc/penstock/pipelines') }}",
        },
    )
