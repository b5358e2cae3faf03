"""What commands say of themselves is complete, fits together, and is said nowhere else."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.core import commands
from penstock.core.commands import COMMANDS, Command
from penstock.core.traits import Home, Repeat, Split

PACKAGE = Path(penstock.__file__).parent
FEW = 5
"""So many commands may stand together outside their declaration: who treats some of them alike says which."""


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_declares_its_traits_and_they_fit_together(kind: type[Command]) -> None:
    forms = kind.__mro__[: kind.__mro__.index(Command)]
    assert any("traits" in vars(form) for form in forms), "neither it nor its first form declares anything"
    traits = kind.traits
    assert (traits.home is Home.QUEUE) == bool(traits.queue)
    assert traits.queue in ("", *kind.__struct_fields__)
    assert set(traits.inside) <= set(kind.__struct_fields__)
    assert traits.split is Split.FIRST or traits.queue, "only queues have partitions"
    if traits.right not in (None, "any"):
        assert traits.queue or traits.home is Home.TASK, "a right is a right on a queue"
    if traits.public:
        assert traits.right is not None
    if traits.may_be_named:
        assert traits.right is not None
        assert traits.repeat is not Repeat.READ


def test_the_commands_are_all_that_the_module_declares() -> None:
    found = [each for each in vars(commands).values() if isinstance(each, type) and issubclass(each, Command)]
    earlier = {each for each in found if each.__subclasses__()}
    assert all(each is Command or each.__name__.startswith("_First") for each in earlier)
    assert set(found) - earlier == set(COMMANDS)


def tables(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """Dicts, sets, tuples, lists, matches and unions that name commands: where, and which."""
    known = {kind.__name__ for kind in COMMANDS}
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            parts = list(node.elts)
        elif isinstance(node, ast.Match):
            parts = [each.cls for each in ast.walk(node) if isinstance(each, ast.MatchClass)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            parts = [each for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)]
        names = {part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "") for part in parts}
        if names & known:
            yield node.lineno, names & known  # type: ignore[attr-defined]


def test_nobody_else_keeps_a_table_of_commands() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} has {len(names)} commands: {', '.join(sorted(names))}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != Path(commands.__file__)
        for line, names in tables(ast.parse(path.read_text()))
        if len(names) > FEW
    ]
    assert not found, "say it in the commands' traits:\n" + "\n".join(found)


NEW_COMMAND = '''class ShoutQueue(Command):
    """Replies with the queue's name, in capitals, and remembers nothing."""

    traits = Traits(reply=str, queue="name", right="read", public=True, repeat=Repeat.READ, split=Split.FIRST)

    name: str


COMMANDS: tuple[type[Command], ...]'''

NEW_HANDLER = """    def _shout_queue(self, command: "ShoutQueue") -> str:
        return self.broker.find_queue(command.name).name.upper()

    def _list_queues("""

USE = """
import sys
import penstock
from penstock.core import commands
from penstock.core.errors import AccessDenied
from penstock.cluster.links import wire
from penstock.server.auth import Grant, Principal
from penstock.server.auth import authorize
from penstock.testing import server
from penstock.wire.answers import unpack_reply

assert penstock.__file__.startswith(sys.argv[1]), penstock.__file__
command = commands.ShoutQueue(name="orders")
assert wire.decode_commands(wire.encode_commands([(1, 2, command, 0)]))[0][0][2] == command
assert unpack_reply(commands.ShoutQueue, wire.encode_replies("ORDERS")) == "ORDERS"
authorize(Principal("r", "r", [Grant(("orders",), ("read",))]), command, {})
try:
    authorize(Principal("w", "w", [Grant(("orders",), ("write",))]), command, {})
except AccessDenied:
    print("refused without the right")
with penstock.open(sys.argv[1] + "/data") as ps:
    ps.queue("orders").send(b"x")
    print(ps._caller.call(command), "in this process")
with penstock.open(sys.argv[1] + "/data", read_only=True) as ps:
    print(ps._caller.call(command), "read-only")
with server() as running, penstock.connect(running.url) as ps:
    ps.queue("orders").send(b"x")
    print(ps._caller.call(command), "over a connection")
"""


def test_one_more_command_is_its_declaration_and_its_handler(tmp_path: Path) -> None:
    """In a copy of the package: two files are touched, and it goes every way that commands go."""
    copy = tmp_path / "penstock"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    touched = {
        "core/commands.py": ("COMMANDS: tuple[type[Command], ...]", NEW_COMMAND),
        "core/handlers/catalog.py": ("    def _list_queues(", NEW_HANDLER),
    }
    for name, (before, after) in touched.items():
        text = (copy / name).read_text()
        assert text.count(before) == 1
        (copy / name).write_text(text.replace(before, after))
    run = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path)],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "refused without the right",
        "ORDERS in this process",
        "ORDERS read-only",
        "ORDERS over a connection",
    ]
    changed = [
        path for path in copy.rglob("*.py") if path.read_text() != (PACKAGE / path.relative_to(copy)).read_text()
    ]
    assert len(changed) == len(touched) == 2
