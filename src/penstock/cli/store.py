"""Where the queues are: a data directory or a server, by flags or by the environment. And `penstock store`."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import click

from penstock.cli.command import Argument, Group, Option
from penstock.cli.exits import Exit
from penstock.cli.output import AsJson, counted, print_done, print_json, print_rows, progress, told_if_slow
from penstock.store.layout import CLUSTER_NAME, foreign_file, is_store

if TYPE_CHECKING:
    from penstock import Penstock


DEFAULT_DIRECTORY = Path("data")

Data = Annotated[
    Path | None,
    Option(
        "--data",
        "-d",
        help="The data directory (./data). Also PENSTOCK_DATA.",
        show_default=False,
        section="Where the queues are",
    ),
]
Url = Annotated[
    str | None,
    Option(
        "--url",
        "-u",
        help="A server instead of a directory: http://host:9325. Also PENSTOCK_URL.",
        show_default=False,
        may_be_empty=False,
        section="Where the queues are",
    ),
]
Token = Annotated[
    str | None,
    Option(
        help="The server's token. Better use PENSTOCK_TOKEN: other users of the machine can see command lines.",
        show_default=False,
        section="Where the queues are",
    ),
]

_VARIABLES = ("DATA", "URL", "TOKEN", "CONFIG", "DATABASE")
"""What commands read of the environment: PENSTOCK_DATA and so on."""
_HOST_AND_PORT = re.compile(r"[^/?#@]+:\d+")
_ARGUMENTS = ("queue", "queues", "channel", "consumer", "session", "bodies", "receipts", "offset")
"""Of these, some are given without a flag."""
_SAID_HERE = {
    "set allow_rewind": "give --allow-rewind",
    "see sessions()": "see `penstock session list`",
    "needs a group": "needs a group (--group)",
    "a dedup id (unless": "a dedup id (--dedup-id, unless",
    "Change the settings of the queue instead of creating it": "`penstock queue configure` changes them",
    "With a target,": "With --to QUEUE,",
    ": open another one": ". `penstock session list` lists the sessions",
    "To create the queue, send a message to it": "`penstock queue list` lists the queues",
}
"""What errors advise, as the command line says it."""

P = ParamSpec("P")
R = TypeVar("R")


def on_store(
    *, read_only: bool = False, creates: bool = False, timeout: float | None = None
) -> Callable[[Callable[Concatenate[Penstock, P], R]], Callable[..., R]]:
    """Make a command of a function that works on an open store: it gets `--data`, `--url` and `--token` in front.

    `read_only` commands may run beside the process that has the directory open. Only a command that `creates`
    makes a store where there is none. `timeout`: how long a server has to answer, if not as long as usual.
    """

    def decorate(function: Callable[Concatenate[Penstock, P], R]) -> Callable[..., R]:
        @functools.wraps(function)
        def command(*arguments: Any, data: Data = None, url: Url = None, token: Token = None, **options: Any) -> R:
            silent = bool(options.get("quiet"))
            place = opened(data, url, token, read_only=read_only, creates=creates, timeout=timeout, silent=silent)
            with speaking_of(options), place as ps:
                return function(ps, *arguments, **options)

        _describe(command, function)
        return command

    return decorate


@contextmanager
def speaking_of(options: dict[str, Any]) -> Iterator[None]:
    """What is wrong is named as it was given: `--max-receives`, and not `max_receives`. So is what to do."""
    try:
        yield
    except Exception as error:
        from penstock.core.errors import InvalidRequest, PenstockError

        if not isinstance(error, PenstockError):
            raise
        text = str(error)
        name = re.split("[ :.]", text, maxsplit=1)[0]
        if isinstance(error, InvalidRequest) and options.get(name) is not None and name not in _ARGUMENTS:
            text = f"--{name.replace('_', '-')}{text.removeprefix(name)}"
        for said, here in _SAID_HERE.items():
            text = text.replace(said, here)
        if text == str(error):
            raise
        raise type(error)(text) from None


def _describe(command: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Give a command the signature that the command line is made from: the function's, and the place to work on."""
    where = {"data": Data, "url": Url, "token": Token}
    names = {"Penstock": object}
    own = list(inspect.signature(function, locals=names, eval_str=True).parameters.values())[1:]
    keyword, options = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD
    parameters = [each.replace(kind=keyword) for each in own if each.kind is not options]
    parameters += [inspect.Parameter(name, keyword, default=None, annotation=hint) for name, hint in where.items()]
    parameters += [each for each in own if each.kind is options]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}


@contextmanager
def opened(
    data: Path | None,
    url: str | None,
    token: str | None,
    *,
    read_only: bool = False,
    creates: bool = False,
    timeout: float | None = None,
    silent: bool = False,
) -> Iterator[Penstock]:
    """The store that flags and environment name, open while the block runs. If it is a new one, the user is told,
    unless the command is to be `silent`."""
    place = chosen(data, url)
    if isinstance(place, Path):
        is_new = creates and not is_store(place) and not (place / CLUSTER_NAME).exists()
        with _directory(place, read_only=read_only, creates=creates) as ps:
            yield ps
        if is_new and not silent:
            hint = "" if data is not None else ". A server is named with --url"
            print(f"penstock: made a new store in {place}{hint}", file=sys.stderr)
    else:
        token = token or os.environ.get("PENSTOCK_TOKEN")
        with _speaking_of_tokens(token), _server(place, token, timeout) as ps:
            yield ps


@contextmanager
def _speaking_of_tokens(token: str | None) -> Iterator[None]:
    """A server that asks for a token: the error says where to give it."""
    try:
        yield
    except Exception as error:
        from penstock.core.errors import AccessDenied

        if token is not None or not isinstance(error, AccessDenied):
            raise
        raise AccessDenied(f"{error}: set PENSTOCK_TOKEN, or give --token") from None


def chosen(data: Path | None, url: str | None) -> Path | str:
    """A directory, or a server's address. Flags go before the environment, and two of a kind contradict each other."""
    warn_of_misspelled_variables()
    if data is not None and url is not None:
        raise click.BadParameter("give --data or --url, not both")
    if data is not None or url is not None:
        return data or url or DEFAULT_DIRECTORY
    in_data, in_url = os.environ.get("PENSTOCK_DATA"), os.environ.get("PENSTOCK_URL")
    if in_data and in_url:
        raise click.BadParameter("PENSTOCK_DATA and PENSTOCK_URL are both set: say --data or --url")
    return in_url or Path(in_data or DEFAULT_DIRECTORY)


def place_of(text: str) -> Path | str:
    """A directory, or the address of a server. `host:9325` is a server, unless there is a directory of that name.

    >>> place_of("penstock://host"), place_of("host:9325"), place_of("data")
    ('penstock://host', 'host:9325', PosixPath('data'))
    """
    is_server = "://" in text or (_HOST_AND_PORT.fullmatch(text) and not Path(text).exists())
    return text if is_server else Path(text)


def place_given(place: str | None, data: Path | None, url: str | None, said: str) -> Path | str:
    """A directory or a server that is given as an argument, or as any command has it: with a flag, or a variable."""
    if place is None:
        return chosen(data, url)
    if data is not None or url is not None:
        raise click.BadParameter(f"give {said} or {'--data' if data is not None else '--url'}, not both")
    return place_of(place)


def place_or_shift(
    place: str | None, file: Path | None, data: Path | None, url: str | None
) -> tuple[str | None, Path | None]:
    """Both arguments of a command: if a flag names the place, an only one is the other."""
    if file is None and place is not None and (data is not None or url is not None):
        return None, Path(place)
    return place, file


def warn_of_misspelled_variables() -> None:
    """Tell of a variable such as PENSTOCK_URI, which nobody reads: the command would go on with another place."""
    context = click.get_current_context(silent=True)
    told = context.meta if context else {}
    if told.get("penstock.variables"):
        return
    told["penstock.variables"] = True
    for name in sorted(os.environ):
        prefix, _, rest = name.partition("_")
        if prefix != "PENSTOCK" or rest in _VARIABLES:
            continue
        from difflib import get_close_matches

        if near := get_close_matches(rest, _VARIABLES, 1):
            from penstock.server.sources import VARIABLES

            if name not in VARIABLES:
                text = f"{name} is no variable of Penstock, perhaps PENSTOCK_{near[0]} is meant"
                print(f"penstock: warning: {text}", file=sys.stderr)


def _directory(directory: Path, *, read_only: bool, creates: bool) -> Penstock:
    import penstock
    from penstock.store.lock import ADVICE

    if directory.exists() and not directory.is_dir():
        raise click.BadParameter(f"{directory} is a file: name the directory that has the queues", param_hint="--data")
    if not creates:
        require_store(directory, "name the data directory with --data, or a server with --url")
    elif name := foreign_file(directory):
        raise click.BadParameter(
            f"{directory} has other files in it ({name}) and no queues: name a new or empty directory",
            param_hint="--data",
        )
    try:
        return penstock.open(directory, read_only=read_only)
    except penstock.StoreLocked as error:
        where = str(error).removesuffix(ADVICE)
        raise penstock.StoreLocked(f"{where}Ask that process instead, with --url; or stop it first.") from None


def require_store(directory: Path, advice: str = "name the data directory with --data") -> None:
    """`NotFound` unless a directory has a store in it, be it damaged, or the stores of several shards."""
    import penstock

    if not directory.is_dir():
        raise penstock.NotFound(f"there is no directory {directory}: {advice}")
    if not is_store(directory) and not (directory / CLUSTER_NAME).exists():
        raise penstock.NotFound(f"{directory} holds no store: {advice}")


def _server(url: str, token: str | None, timeout: float | None) -> Penstock:
    import penstock

    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    try:
        with told_if_slow(f"waiting for an answer from {url}"):
            return penstock.connect(url, token=token, name=f"penstock {os.getpid()}", **options)
    except penstock.InvalidRequest as error:
        raise click.BadParameter(str(error), param_hint="--url") from None


# -- penstock store ----------------------------------------------------------------------------------------------------


def _directory_given(source: str | None, data: Path | None) -> Path:
    place = place_given(source, data, None, "SOURCE")
    if not isinstance(place, Path):
        raise click.BadParameter(
            f"{place} is a server, and this works on a directory: give --data. `penstock export` works on both"
        )
    return place


def _both_directories(source: str | None, target: Path | None, data: Path | None) -> tuple[Path, Path]:
    source, target = place_or_shift(source, target, data, None)
    if target is None:
        raise click.MissingParameter(param_hint="'TARGET'", param_type="argument")
    return _directory_given(source, data), target


stores = Group(help="Back up a data directory; check it for damage; salvage what is readable.")


@stores.command()
def backup(
    source: Annotated[
        str | None, Argument(help="The data directory. A server may have it open.", may_be_empty=False)
    ] = None,
    target: Annotated[Path | None, Argument(help="A directory that is new, or empty.")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Copy a data directory while a server serves from it, and check the copy.

    Everything that was acknowledged before the command began is in the copy. Exit status 0: no damage; 1: damage.
    """
    import msgspec

    from penstock.backup import back_up

    directory, target = _both_directories(source, target, data)
    try:
        with progress(f"backing up {directory}", unit="bytes") as show:
            done = back_up(directory, target, show)
    except KeyboardInterrupt:
        print(f"penstock: interrupted: {target} is incomplete. Delete it, and start again.", file=sys.stderr)
        raise click.exceptions.Exit(Exit.INTERRUPTED) from None
    rows = msgspec.to_builtins(done.findings)
    if rows and not as_json:
        print_rows(rows, as_json, f"Damage in {target}")
    state = f"damaged as {directory} is" if rows else "checked and whole"
    text = f"{target}: {counted(done.stores, 'store')}, {done.bytes:,} bytes in {done.seconds:.1f} s; {state}"
    print_done(text, msgspec.to_builtins(done), as_json)
    if rows:
        raise click.exceptions.Exit(Exit.FAILED)


@stores.command()
def check(
    source: Annotated[str | None, Argument(help="The data directory.", may_be_empty=False)] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Read everything in a directory, and list what is damaged. Exit status 0: no damage; 1: damage.

    Nothing is changed, and a server may have the directory open.
    """
    import msgspec

    from penstock import salvage as care

    directory = _directory_given(source, data)
    if not directory.is_dir() or care.stores_in(directory) == [directory]:
        require_store(directory)
    findings = [
        ({"store": store.name} if store != directory else {}) | msgspec.to_builtins(finding)
        for store in care.stores_in(directory)
        for finding in care.check(store)
    ]
    if as_json:
        print_json(findings)
    elif findings:
        print_rows(findings, as_json, f"Damage in {directory}")
        advice = "restore a backup, or stop the server and copy what is readable:"
        print(f"{advice} penstock store salvage {directory} NEW", file=sys.stderr)
    else:
        print(f"{directory} is whole", flush=True)
    if findings:
        raise click.exceptions.Exit(Exit.FAILED)


@stores.command()
def salvage(
    source: Annotated[
        str | None, Argument(help="The damaged directory. No server may have it open.", may_be_empty=False)
    ] = None,
    target: Annotated[Path | None, Argument(help="A directory that is new, or empty.")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Copy everything that is readable to a new directory, and list what is not."""
    import msgspec

    from penstock import salvage as care

    directory, target = _both_directories(source, target, data)
    try:
        with progress(f"salvaging {directory}", unit="chunks") as show:
            done = care.salvage(directory, target, show)
    except KeyboardInterrupt:
        print(f"penstock: interrupted: {target} is incomplete. Delete it, and start again.", file=sys.stderr)
        raise click.exceptions.Exit(Exit.INTERRUPTED) from None
    rows = msgspec.to_builtins(done.findings)
    if as_json:
        print_json(rows)
    elif rows:
        print_rows(rows, as_json, "Not copied as it was")
    counts = {"queues": done.queues, "rebuilt": done.rebuilt, "messages": done.messages, "findings": len(rows)}
    text = (
        f"{target}: {done.queues} queues as they were, {done.rebuilt} made whole, {done.messages} messages; "
        f"{len(rows)} findings, in {target / care.LIST_NAME}"
    )
    print_done(text, counts, as_json)
