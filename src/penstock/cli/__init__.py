"""The command line: `penstock`. On a data directory, or on a server: `--data` or `--url`, see `penstock.cli.store`.

A command's libraries are loaded when it runs. `penstock --help` must not wait for numpy.
"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.care import stores
from penstock.cli.cluster import clusters
from penstock.cli.consumers import consumers
from penstock.cli.dead_letters import redrive
from penstock.cli.exits import Exit, errors_reported
from penstock.cli.messages import ack, peek, receive, release, send
from penstock.cli.outbox import outboxes
from penstock.cli.pipelines import pipelines, sql
from penstock.cli.queues import channels, queues
from penstock.cli.stats import stats, top
from penstock.cli.streams import dependable_streams
from penstock.lookup_command import LookupCommand, lookup
from penstock.serve import ServeCommand, serve

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 1 failed, 2 wrong usage, 3 nothing there, 4 unreachable, 5 not allowed.",
)
app.add_typer(queues, name="queue")
app.add_typer(channels, name="channel")
app.add_typer(consumers, name="consumer")
app.add_typer(outboxes, name="outbox")
app.add_typer(pipelines, name="pipeline")
app.add_typer(clusters, name="cluster")
app.add_typer(stores, name="store")
app.command(cls=ServeCommand)(serve)
app.command(cls=LookupCommand)(lookup)
for command in (send, receive, ack, release, peek, redrive, stats, top, sql):
    app.command()(command)


def main() -> None:
    """Run the command line; what goes wrong is one line on the error stream, and an exit status."""
    with errors_reported(), dependable_streams():
        raise SystemExit(app(prog_name="penstock", standalone_mode=False) or Exit.OK)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A durable message queue in one directory, or on a server.

    `penstock send orders tea` sends a message to the queue `orders` in ./data. `penstock receive orders` receives it.
    With --url both work on a server.
    """


@app.command()
def demo() -> None:
    """Send, receive, fail, retry, dead-letter and redrive on a temporary directory, and show what happened."""
    from penstock import demo as demonstration
    from penstock.cli.output import stdout

    demonstration.run(stdout())


if __name__ == "__main__":
    main()
