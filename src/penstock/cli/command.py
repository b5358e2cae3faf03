"""Commands made of functions, on Click: an annotation says what a parameter is on the command line.

    def peek(queue: Annotated[str, Argument(help="The queue's name.")], max: Annotated[int, Option(help="…")] = 10)

A function becomes a command when it is asked for, and a group's commands may be in modules that are loaded only then:
`penstock --help` loads Click and this package's table of commands, and nothing else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import click

if TYPE_CHECKING:
    from penstock.core.settings import Declared


F = TypeVar("F", bound=Callable[..., Any])

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_CALLED_HERE = {"--kind": "--fifo", "--visibility-timeout": "--lease", "--limit": "--max", "--count": "--max"}
_COMMANDS_CALLED_HERE = {
    "consume": "receive",
    "help": "--help",
    "info": "queue describe",
    "list": "queue list",
    "ls": "queue list",
    "publish": "send",
    "server": "serve",
    "start": "serve",
    "subscribe": "receive",
    "version": "--version",
}
"""What other tools call these, and what they are here, after `penstock`."""
_EXAMPLE = re.compile(r"(^|\| )penstock [a-z-]")
"""A paragraph of a docstring that is an example: a command line, perhaps behind a pipe."""


class Option:
    """A parameter that is given with a flag: `--its-name`, unless others are named."""

    def __init__(
        self,
        *flags: str,
        help: str,
        section: str = "Options",
        min: float | None = None,
        max: float | None = None,
        envvar: str | None = None,
        metavar: str | None = None,
        show_default: bool | str = True,
        may_be_empty: bool = True,
    ) -> None:
        self.flags, self.help, self.section, self.envvar, self.metavar = flags, help, section, envvar, metavar
        self.min, self.max = min, max
        self.show_default, self.may_be_empty = show_default, may_be_empty


class Argument:
    """A parameter that is given by its place."""

    def __init__(self, *, help: str, min: int | None = None, may_be_empty: bool = True) -> None:
        self.help, self.min, self.max, self.may_be_empty = help, min, None, may_be_empty


class Options:
    """What `**options` of a function stands for: parameters that are declared elsewhere, and what each is by its name.

    They are asked for when the command runs or shows its help. None of them is required.
    """

    def __init__(self, declared: Callable[[], Mapping[str, Any]]) -> None:
        self.declared = declared


class _Given(click.Parameter):
    """A parameter that may not be empty: with `--data "$UNSET"`, nobody means the current directory."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """The value as the command gets it."""
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            raise click.BadParameter(
                "it is empty: give a name ('.' is the current directory). Is a variable unset?", ctx, self
            )
        return super().process_value(ctx, value)


class _GivenOption(_Given, click.Option):
    pass


class _GivenArgument(_Given, click.Argument):
    pass


class Command(click.Command):
    """A function as a command. Its docstring is the help; examples in it get a section of their own."""

    def __init__(self, name: str, function: Callable[..., Any], epilog: str | None = None) -> None:
        super().__init__(name, SETTINGS, function, None, inspect.getdoc(function), epilog)
        self._declared: dict[str, Option | Argument] = {}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The function's parameters, as Click has them. A command in a list of commands does without."""
        if not self.params:
            assert self.callback is not None
            signature = list(_signature(self.callback))
            self._declared = {each.name: get_args(each.annotation)[1] for each in signature}
            self.params = list(map(_parameter, signature))
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """A command line that the function refuses is one of this command."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; for an option of the API that has another name here, say which."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name, meant = error.option_name, _CALLED_HERE.get(error.option_name)
            if name == "--workers" and self.name == "serve":
                from penstock.server.settings import GONE

                raise click.UsageError(f"{name} is gone: {GONE['workers']}", ctx) from None
            if meant is not None and any(meant in each.opts for each in self.params):
                raise click.UsageError(f"No such option {name!r}. Did you mean {meant!r}?", ctx) from None
            from penstock.core.queues.config import SETTINGS

            setting = SETTINGS.get(name.strip("-").replace("-", "_"))
            if setting is None or not setting.setting.for_life:
                raise
            raise click.UsageError(f"{name!r} is chosen when the queue is created, and stays", ctx) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The docstring, and then its examples."""
        paragraphs = (self.help or "").split("\n\n")
        examples = [each for each in paragraphs if _EXAMPLE.search(each) and "\n" not in each]
        for each in paragraphs:
            if each not in examples:
                formatter.write_paragraph()
                with formatter.indentation():
                    formatter.write_text(each)
        if examples:
            with formatter.section("Examples"):
                for each in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{each}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, options, and sections of options that belong together."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            declared = self._declared.get(parameter.name or "")
            if isinstance(declared, Argument):
                sections["Arguments"].append((parameter.make_metavar(ctx), declared.help))
            elif record := parameter.get_help_record(ctx):
                sections.setdefault(declared.section if declared else "Options", []).append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _signature(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for each in inspect.signature(function, eval_str=True).parameters.values():
        if each.kind is not each.VAR_KEYWORD:
            yield each
            continue
        for name, annotation in get_args(each.annotation)[1].declared().items():
            yield inspect.Parameter(name, each.KEYWORD_ONLY, default=None, annotation=annotation)


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    hint, declared = get_args(parameter.annotation)
    if get_origin(hint) in (Union, UnionType):  # `Literal | None` is the former
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    many = get_origin(hint) is list
    kind_of = get_args(hint)[0] if many else hint
    kind = _kind(kind_of, declared)
    may_be_empty = declared.may_be_empty and kind_of is not Path
    required, default = parameter.default is parameter.empty, parameter.default
    common: dict[str, Any] = {"type": kind, "required": required}
    if many:
        common["callback"] = lambda ctx, parameter, values: list(values) or None
    elif not required:
        common["default"] = default
    if isinstance(declared, Argument):
        of = click.Argument if may_be_empty else _GivenArgument
        return of([parameter.name], nargs=-1 if many else 1, **common)
    flag = f"--{parameter.name.replace('_', '-')}"
    flags = declared.flags or ((f"{flag}/--no{flag[1:]}",) if default is True else (flag,))
    says_nothing = required or default in (None, False, "")
    return (click.Option if may_be_empty else _GivenOption)(
        [*flags, parameter.name],
        help=declared.help,
        is_flag=True if hint is bool else None,
        multiple=many,
        envvar=declared.envvar,
        metavar=declared.metavar,
        show_default=False if says_nothing and declared.show_default is True else declared.show_default,
        **common,
    )


def _kind(hint: Any, declared: Option | Argument) -> Any:
    """What Click calls a type."""
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if hint is Path:
        return click.Path(path_type=Path, readable=False)  # whoever opens it says whose it is
    if hint is datetime:
        return click.DateTime()
    if declared.min is not None or declared.max is not None:
        kind: Any = click.FloatRange if hint is float else click.IntRange
        return kind(declared.min, declared.max)
    return hint


class Place(NamedTuple):
    """A command in a module that is loaded when it is needed; its first sentence is here, for the list of commands."""

    place: str
    """`module:name` of a function or a group."""
    summary: str


class Group(click.Group):
    """Commands by name: functions of the module that has the group, or places in others, listed in sections."""

    def __init__(
        self, *, help: str, epilog: str | None = None, sections: Mapping[str, Mapping[str, Place]] | None = None
    ) -> None:
        super().__init__(help=help, epilog=epilog, no_args_is_help=True, context_settings=SETTINGS)
        self.functions: dict[str, Callable[[], click.Command]] = {}
        self.sections = sections or {}

    def command(  # type: ignore[override]
        self, name: str | None = None, *, cls: type[Command] = Command, epilog: str | None = None
    ) -> Callable[[F], F]:
        """Make a function a command of this group."""

        def decorate(function: F) -> F:
            called = name or function.__name__
            self.functions[called] = lambda: cls(called, function, epilog)
            return function

        return decorate

    @cached_property
    def places(self) -> dict[str, Place]:
        """Every command that is in another module."""
        return {name: place for section in self.sections.values() for name, place in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which they are declared."""
        return [*self.places, *self.functions]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make a command, or load it."""
        if cmd_name in self.functions:
            return self.functions[cmd_name]()
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name].place.partition(":")
        found = getattr(import_module(module), name)
        return found if isinstance(found, click.Command) else Command(cmd_name, found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for a mistyped one, say which may be meant."""
        name = args[0]
        if self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            called = _COMMANDS_CALLED_HERE.get(name) if ctx.parent is None else None
            close = [called] if called else get_close_matches(name, self.list_commands(ctx), 1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what is before the command's name: whoever puts its options there learns where they go."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in ("-V", "-v") and ctx.parent is None:
                raise click.UsageError(
                    f"No such option {error.option_name!r}. Did you mean '--version'?", ctx
                ) from None
            where = f"goes after the command, as in `{ctx.command_path} COMMAND {error.option_name}`"
            raise click.UsageError(f"{error.option_name} {where}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands: those of other modules by section, without loading them."""
        for title, places in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, place.summary) for name, place in places.items()], col_max=12)
        if self.functions:
            made = {name: make() for name, make in self.functions.items()}
            with formatter.section("Commands"):
                formatter.write_dl([(name, each.get_short_help_str(100)) for name, each in made.items()])


_METAVARS = {int: "NUMBER", float: "NUMBER", str: "TEXT", bool: "true|false"}


def option_of(setting: Declared, *flags: str, section: str = "Options") -> Any:
    """What a setting is on the command line: a text, which is read and checked where the setting is declared."""
    words = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    default = f" Default: {setting.default_text}." if setting.default_text else ""
    metavar = "SECONDS" if setting.unit else "WORD" if setting.choices else _METAVARS.get(setting.kind, "JSON")
    about = setting.setting.help + words + default
    return Annotated[str | None, Option(*flags, help=about, metavar=metavar, section=section)]
