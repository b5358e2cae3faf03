"""The command line: `penstock`. On a data directory, or on a server: `--data` or `--url`, see `penstock.cli.store`.

A command's module and libraries are loaded when it runs. `penstock --help` must not wait for numpy.
"""

from __future__ import annotations

import gc
import os
import sys

import click

from penstock import __version__, _build
from penstock.cli.command import Group, Place
from penstock.cli.exits import Exit, dependable_streams, errors_reported

SECTIONS = {
    "Messages": {
        "send": Place("penstock.cli.messages:send", "Send messages: the arguments, lines of standard input, or files."),
        "receive": Place("penstock.cli.messages:receive", "Receive messages, print them and acknowledge them."),
        "ack": Place("penstock.cli.messages:ack", "Acknowledge messages that were received with --no-ack."),
        "release": Place("penstock.cli.messages:release", "Return messages that were received with --no-ack."),
        "peek": Place("penstock.cli.messages:peek", "Show messages without receiving them."),
        "explain": Place("penstock.cli.explain:explain", "Show the whole life of a message, by its id."),
        "message": Place(
            "penstock.cli.explain:single_messages", "Delete, release and reschedule messages by id: no lease is needed."
        ),
        "redrive": Place("penstock.cli.queues:redrive", "Move dead letters back to the queues where they failed."),
    },
    "Queues": {
        "queue": Place("penstock.cli.queues:queues", "Create, list, describe, change, empty and delete queues."),
        "channel": Place("penstock.cli.queues:channels", "Create, list, pause, empty and delete channels of a queue."),
        "consumer": Place("penstock.cli.queues:consumers", "List, move and delete named consumers, and read as one."),
        "session": Place("penstock.cli.queues:sessions", "Show who holds which messages; end a session."),
        "stats": Place("penstock.cli.stats:stats", "Show exact counts of queues."),
        "top": Place("penstock.cli.stats:top", "Watch queues: depth and rates, the busiest first."),
    },
    "Servers and directories": {
        "serve": Place("penstock.serve:serve", "Serve queues over SQS, REST, websocket and NSQ."),
        "lookup": Place("penstock.serve:lookup", "Run the lookup service, for NSQ clients of several nodes."),
        "cluster": Place("penstock.cli.cluster:clusters", "Show nodes and shards, move shards, drain nodes."),
        "store": Place("penstock.cli.store:stores", "Back up a data directory; check it for damage; salvage it."),
    },
    "Data": {
        "export": Place("penstock.cli.transfer:export_queues", "Write queues with their messages to a file."),
        "import": Place("penstock.cli.transfer:import_queues", "Bring an export into a directory or a server."),
        "outbox": Place("penstock.cli.outbox:outboxes", "Move messages from a database's outbox to queues."),
        "pipeline": Place("penstock.cli.pipelines:pipelines", "Run pipelines on Spark: queues to queues and tables."),
        "sql": Place("penstock.cli.pipelines:sql", "Query queues in SQL, on Spark."),
    },
    "First steps": {
        "demo": Place("penstock.demo:demo", "Send, receive, fail, retry and redrive on a temporary directory."),
    },
}

_YOUNG_MAX = 20_000
"""How many new objects there are before somebody looks for cycles: Python's 700 cost a tenth of a start."""


def _print_version(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked:
        hint = "" if _build() == "compiled" else ": `make compile` in a clone makes the faster, compiled build"
        print(f"penstock {__version__} ({_build()}{hint})")
        context.exit()


app = Group(
    help="""A durable message queue in one directory, or on a server.

    `penstock send orders tea` sends a message to the queue `orders` in ./data. `penstock receive orders` receives it.
    With --url, after the command, both work on a server.""",
    epilog="Exit status: 0 done, 1 failed, 2 wrong usage, 3 nothing there, 4 unreachable, 5 not allowed.",
    sections=SECTIONS,
)
app.params.append(
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version.",
    )
)


def main() -> None:
    """Run the command line; what goes wrong is one line on the error stream, and an exit status."""
    gc.set_threshold(_YOUNG_MAX)
    with errors_reported(), dependable_streams():
        if "_PENSTOCK_COMPLETE" in os.environ:  # a shell asks what may follow
            app(prog_name="penstock")
        with app.make_context("penstock", sys.argv[1:]) as context:
            app.invoke(context)
    raise SystemExit(Exit.OK)
