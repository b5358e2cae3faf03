"""Prometheus' alert rules and Grafana's dashboard of a cluster, made of the metrics that there are.

A rule or a panel that asks for a metric which is gone cannot be made. `python -m docs.draw` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from docs.reference import families_by_section

DEPLOY = Path(__file__).parent.parent / "deploy"
CLUSTER = "Nodes"
_WIDTH, _HEIGHT = 12, 8


class Alert(NamedTuple):
    """When to wake somebody, and what to say."""

    name: str
    expression: str
    summary: str
    minutes: int = 0
    severity: str = "warning"


ALERTS = (
    Alert("DeadLetters", "increase(penstock_messages_dead_total[15m]) > 0", "messages failed for good: see QUEUE.dead"),
    Alert(
        "OldMessages",
        "penstock_channel_oldest_message_timestamp_seconds > 0 "
        "and time() - penstock_channel_oldest_message_timestamp_seconds > 600",
        "{{ $labels.queue }} is behind: its oldest message is older than 10 minutes",
        5,
    ),
    Alert(
        "ManyFailures",
        "sum(rate(penstock_deliveries_failed_total[5m])) > sum(rate(penstock_messages_acked_total[5m]))",
        "more deliveries fail than succeed",
        10,
    ),
    Alert(
        "DiskTrouble",
        "increase(penstock_store_apply_failures_total[15m]) > 0",
        "the store cannot be written: see the server's log",
        severity="critical",
    ),
    Alert(
        "DamagedQueues",
        "penstock_damaged_queues > 0",
        "queues are in quarantine: penstock store check",
        severity="critical",
    ),
    Alert("NodeDown", 'up{job="penstock"} == 0', "{{ $labels.instance }} does not answer", 1, "critical"),
    Alert(
        "ShardsUnserved",
        "count(count by (shard) (penstock_shard_epoch)) "
        "< count(count by (shard) (max_over_time(penstock_shard_epoch[1h])))",
        "a shard is served by no node: penstock cluster show",
        1,
        "critical",
    ),
    Alert(
        "ShardsMoveOften",
        "sum(changes(penstock_shard_epoch[10m])) > 20",
        "shards move again and again: look for nodes that come and go, or stand still",
        severity="warning",
    ),
    Alert(
        "SlowCommits",
        "rate(penstock_shard_commit_seconds_total[5m]) / rate(penstock_shard_commits_total[5m]) > 1",
        "commits of shard {{ $labels.shard }} take longer than a second: look at Kafka",
        5,
    ),
    Alert(
        "OutboxStuck",
        "penstock_outbox_oldest_seconds > 120",
        "dead letters or units of work of shard {{ $labels.shard }} wait for another shard",
        5,
    ),
    Alert(
        "WrongNode",
        "sum(rate(penstock_forwarded_commands_total[5m])) > 0.9 * sum(rate(penstock_messages_sent_total[5m])) > 100",
        "most commands are forwarded: clients could use routing=direct",
        30,
        "info",
    ),
)


def known() -> dict[str, str]:
    """Every metric, as it is exposed, and its type."""
    return {name: each.type for section in families_by_section().values() for name, each in section.items()}


def checked(expression: str) -> str:
    """An expression, if every metric in it exists."""
    metrics = known()
    for name in re.findall(r"penstock_\w+", expression):
        bare = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in metrics or metrics.get(bare) == "histogram", f"there is no metric {name}"
    return expression


def alert_rules() -> str:
    """A file of rules for Prometheus. JSON is YAML, too."""
    lines = ["# Made by `python -m docs.draw`, from docs/monitoring.py.", "groups:", "  - name: penstock", "    rules:"]
    for alert in ALERTS:
        lines += [f"      - alert: {alert.name}", f"        expr: {json.dumps(checked(alert.expression))}"]
        lines += [f"        for: {alert.minutes}m"] if alert.minutes else []
        lines += [f"        labels: {{severity: {alert.severity}}}"]
        lines += [f"        annotations: {{summary: {json.dumps(alert.summary)}}}"]
    return "\n".join(lines) + "\n"


def dashboard() -> str:
    """A panel for every metric of a cluster's nodes."""
    panels = []
    for at, (name, family) in enumerate(families_by_section()[CLUSTER].items()):
        labels = [label for label in family._labelnames if label != "shard"]
        by = f" by ({', '.join(labels)})" if labels else ""
        expression = f"sum{by} (rate({name}[1m]))" if family.type == "counter" else f"sum{by} ({name})"
        if name == "penstock_shard_epoch":
            expression = f"count{by} ({name})"  # how many shards each node serves
        panels.append(
            {
                "id": at + 1,
                "title": name.removeprefix("penstock_").replace("_", " "),
                "description": family.documentation,
                "type": "timeseries",
                "datasource": {"type": "prometheus", "uid": "prometheus"},
                "gridPos": {"x": at % 2 * _WIDTH, "y": at // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
                "fieldConfig": {"defaults": {"unit": "short", "min": 0}, "overrides": []},
                "targets": [
                    {"refId": "A", "expr": checked(expression), "legendFormat": "{{" + "}} {{".join(labels) + "}}"}
                ],
            }
        )
    board = {"uid": "penstock-cluster", "title": "Penstock: a cluster", "timezone": "browser", "schemaVersion": 39}
    return (
        json.dumps({**board, "refresh": "5s", "time": {"from": "now-30m", "to": "now"}, "panels": panels}, indent=1)
        + "\n"
    )


FILES: Mapping[Path, Callable[[], str]] = {
    DEPLOY / "prometheus" / "alerts.yml": alert_rules,
    DEPLOY / "compose" / "grafana" / "dashboards" / "penstock-cluster.json": dashboard,
}
"""File -> what writes it."""
