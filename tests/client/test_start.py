"""What starting loads. Lists of modules, and no times: a slow machine loads the same ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import sys
before = set(sys.modules)
{}
print(*sorted(set(sys.modules) - before - set(sys.stdlib_module_names)), file=sys.stderr)
"""


def loaded(code: str) -> set[str]:
    """The modules that are not Python's own, by name, which some code loads."""
    ended = subprocess.run([sys.executable, "-c", PROBE.format(code)], capture_output=True, text=True, check=True)
    names = ended.stderr.splitlines()[-1].split()
    others = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    return {name for name in others if not name.endswith("__mypyc")}  # of the compiled package: ours


def test_help_loads_click_and_the_list_of_commands() -> None:
    names = loaded("from penstock.cli import app; app(['--help'], standalone_mode=False)")
    assert {name for name in names if name.startswith("penstock")} == {
        "penstock",
        "penstock.cli",
        "penstock.cli.command",
        "penstock.cli.exits",
    }
    assert {name.partition(".")[0] for name in names} == {"penstock", "click"}


@pytest.mark.parametrize("command", ["queue", "queue describe"])
def test_help_of_a_command_loads_its_module_and_no_library(command: str) -> None:
    names = loaded(f"from penstock.cli import app; app('{command} --help'.split(), standalone_mode=False)")
    assert "penstock.cli.queues" in names
    assert {name.partition(".")[0] for name in names} == {"penstock", "click"}
    assert not {name for name in names if name.startswith(("penstock.client", "penstock.server", "penstock.core.c"))}


def test_help_of_a_command_with_declared_options_loads_their_declaration() -> None:
    names = loaded("from penstock.cli import app; app(['queue', 'create', '--help'], standalone_mode=False)")
    assert {name.partition(".")[0] for name in names} <= {"penstock", "click", "msgspec", "typing_extensions"}
    assert {name for name in names if name.startswith("penstock.core.")} == {
        "penstock.core.backoff",
        "penstock.core.queues",
        "penstock.core.queues.config",
        "penstock.core.errors",
        "penstock.core.settings",
    }
    assert not {name for name in names if name.startswith(("penstock.client", "penstock.server"))}


def test_import_penstock_loads_nothing_until_a_name_is_used() -> None:
    assert loaded("import penstock") == {"penstock"}


def test_a_server_loads_what_it_serves_with_and_nothing_of_clients_commands_or_spark() -> None:
    names = loaded("import penstock.assembly")
    parts = {".".join(name.split(".")[:2]) for name in names if name.startswith("penstock.")}
    assert not parts & {"penstock.client", "penstock.cli", "penstock.spark", "penstock.pipelines", "penstock.outbox"}
    needed = {"penstock", "httptools", "msgspec", "numpy", "prometheus_client", "uvloop", "websockets", "xxhash"}
    brought = {"typing_extensions", "snappy", "cramjam", "cython_runtime"}
    assert {name.partition(".")[0] for name in names if not name.startswith("_")} <= needed | brought
