"""A node put together with its front ends, run as a process until a signal ends it."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock import __version__, process
from penstock.core.errors import PenstockError
from penstock.protocols.http import Handler
from penstock.protocols.http_front_end import HttpFrontEnd
from penstock.protocols.nsq.http import NsqHttpFrontEnd
from penstock.protocols.nsq.server import NsqFrontEnd
from penstock.protocols.rest.app import RestFrontEnd
from penstock.protocols.sns.http_delivery import HttpTargets
from penstock.protocols.sns.service import CHANGES as SNS_CHANGES
from penstock.protocols.sqs.actions import CHANGES as SQS_CHANGES
from penstock.protocols.sqs.query_wire import render_refusal
from penstock.protocols.sqs.server import SqsFrontEnd, check_header, refuse_request
from penstock.server.engines import ENGINES
from penstock.server.node import FrontEnd, Node, Ready, Services
from penstock.server.settings import Settings, is_loopback
from penstock.store.layout import CLUSTER_NAME


def greeting(ready: Ready, *, needs_token: bool, has_console: bool) -> str:
    """A line with every address, then what to do with them."""
    url = ready.listening["http"].url
    console = f"{url}/ is the console, " if has_console else ""
    token = " --token ACCESS_KEY:SECRET_KEY" if needs_token else ""
    return "\n".join(
        [
            ready.line(),
            f"In a browser: {console}{url}/v1/docs has a form for every REST request.",
            f"To try it, in another terminal: {program()} send orders tea --url {url}{token}",
            "Ctrl-C stops the server.",
        ]
    )


def program() -> str:
    """How `penstock` is called from where we are: by its name if a shell finds it, else by its path."""
    beside = Path(sys.executable).with_name("penstock")
    found = shutil.which("penstock")
    if found is not None and Path(found).resolve() == beside.resolve():
        return "penstock"
    if not beside.exists():
        return f"{sys.executable} -m penstock"
    here = Path.cwd()
    return str(beside.relative_to(here)) if beside.is_relative_to(here) else str(beside)


log = logging.getLogger("penstock")


def run(chosen: Settings, ready_file: Path | None, read_again: Callable[[], Settings]) -> None:
    """Serve until a signal comes. Returns when everything is committed and closed. SIGHUP reads the settings again."""
    served = node(chosen)
    process.run(served, ready_file, _greeting(chosen), partial(_take_again, served.take_settings, read_again))


def _take_again(take: Callable[[Settings], str], read_again: Callable[[], Settings]) -> None:
    try:
        told = take(read_again())
    except PenstockError as error:
        log.error("SIGHUP: nothing was changed: %s", error)
    else:
        log.warning("SIGHUP: %s", told)


def _greeting(chosen: Settings) -> Callable[[Ready], str]:
    """What a person reads. Where logs are JSON, programs read the output, and get the one line."""
    if chosen.log.format == "json":
        return Ready.line
    return partial(greeting, needs_token=bool(chosen.credentials), has_console=chosen.rest.console)


def node(chosen: Settings) -> Node:
    """A node that stands alone, or one of many."""
    if chosen.server.engine == "embedded" and (Path(chosen.server.data) / CLUSTER_NAME).exists():
        from penstock.cluster.shards import ShardedNode

        return ShardedNode(chosen, front_ends(chosen), __version__)
    made: Node = ENGINES[chosen.server.engine].load_node()(chosen, front_ends(chosen), __version__)
    return made


class AwsFrontEnd(HttpFrontEnd):
    """SQS and SNS, to whose clients every answer has to be one of AWS's."""

    render = staticmethod(render_refusal)
    changes = SQS_CHANGES | SNS_CHANGES


def front_ends(chosen: Settings) -> list[FrontEnd]:
    """Every protocol that a node speaks."""
    return [
        AwsFrontEnd("sqs", chosen.server.sqs_port, sqs_handler, refuse_request, sqs_header_check),
        RestFrontEnd(chosen.server.http_port, __version__),
        NsqFrontEnd(chosen.server.nsq_tcp_port),
        NsqHttpFrontEnd(chosen.server.nsq_http_port),
    ]


def sqs_header_check(services: Services) -> Handler:
    """What refuses unauthenticated SQS requests before their bodies are read."""
    return check_header(services.credentials)


def sqs_handler(services: Services) -> Handler:
    """The SQS front end of a node, with SNS; what is published to its topics is delivered from here."""
    settings, credentials = services.settings, services.credentials
    targets = HttpTargets(
        settings.sns.http_targets,
        loopback=is_loopback(settings.server.host) and not credentials.are_required,
        own_ports=lambda: {each.port for each in services.listening.values()},
    )
    front_end = SqsFrontEnd(services.shard, settings.sqs, credentials, services.budget, settings.sns, targets)
    if not services.shard.read_only:
        front_end.sns.deliveries.start()
        services.metric_sources.append(front_end.sns.deliveries.families)
    return front_end.handle
