"""`make test` runs a failed test again: flaky ones are told, and only what fails twice fails the run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ONCE = """
from pathlib import Path

def test_fails_the_first_time():
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        print("what it printed")
        raise AssertionError("only now")
"""
ALWAYS = "def test_fails_always():\n    assert 1 == 2\n"
WELL = "def test_passes():\n    pass\n"


def run(directory: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """The tool over a suite of two groups, `beside` and `others`."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    for group in ("beside", "others"):
        (directory / group).mkdir()
        (directory / group / f"test_{group}.py").write_text(files[group])
    return call(directory, "[('beside',)], ('others',)")


def call(directory: Path, groups: str, run: str = "main([]") -> subprocess.CompletedProcess[str]:
    """The tool over groups of tests, and others."""
    code = f"import sys; from pathlib import Path; from tools import test; sys.exit(test.{run}, {groups}))"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("group", ["beside", "others"])
def test_a_test_that_passes_when_run_again_is_told_as_flaky_with_both_logs(tmp_path: Path, group: str) -> None:
    ran = run(tmp_path, **{"beside": WELL, "others": WELL, group: ONCE})
    assert ran.returncode == 0, ran.stdout
    told = ran.stdout.rindex("== FLAKY: 1 failed among the others")
    assert f"FLAKY {group}/test_{group}.py::test_fails_the_first_time" in ran.stdout[told:]
    failed, passed = sorted((tmp_path / "build/flaky").iterdir())
    assert "only now" in failed.read_text() and "what it printed" in failed.read_text()
    assert "1 passed" in passed.read_text()
    assert failed.read_text() in ran.stdout and passed.read_text() in ran.stdout


@pytest.mark.parametrize("group", ["beside", "others"])
def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path, group: str) -> None:
    ran = run(tmp_path, **{"beside": ONCE, "others": WELL, group: ALWAYS})
    assert ran.returncode == 1, ran.stdout
    assert f"FAILED {group}/test_{group}.py::test_fails_always" in ran.stdout.splitlines()[-3:]


def test_a_test_that_breaks_its_tear_down_is_run_again_as_well(tmp_path: Path) -> None:
    fixture = "import pytest\n\n@pytest.fixture\ndef torn():\n    yield\n    assert 0, 'torn'\n"
    ran = run(tmp_path, beside=WELL, others=f"{fixture}\ndef test_is_torn_down(torn):\n    pass\n")
    assert ran.returncode == 1 and "FAILED others/test_others.py::test_is_torn_down" in ran.stdout


def test_a_process_that_dies_fails_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, beside=WELL, others=f"import os\n{ONCE}\ndef test_dies():\n    os._exit(1)\n")
    assert ran.returncode == 1 and "more is wrong than single tests" in ran.stdout


def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, beside="import what_is_not_there\n", others=WELL)
    assert ran.returncode == 1, ran.stdout


def test_when_too_many_fail_none_is_run_again(tmp_path: Path) -> None:
    many = "import pytest\n\n@pytest.mark.parametrize('n', range(21))\ndef test_fails(n):\n    assert n < 0\n"
    ran = run(tmp_path, beside=many, others=WELL)
    assert ran.returncode == 1 and "21 tests failed, and none is run again" in ran.stdout


def test_what_is_below_two_groups_is_run_once(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "test_counted.py").write_text("def test_counts():\n    open('counted', 'a').write('x')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for groups in ([["others/test_counted.py"]], [["others"], ["others/test_counted.py"]]):
        ran = call(tmp_path, f"{groups}, ('.',)")
        assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "counted").read_text() == "xx"


def test_a_run_without_failures_passes(tmp_path: Path) -> None:
    ran = run(tmp_path, beside=WELL, others=WELL)
    assert ran.returncode == 0 and "FLAKY" not in ran.stdout and not (tmp_path / "build/flaky").exists()


def test_the_tests_run_on_the_package_that_is_named_and_so_does_what_they_start(tmp_path: Path) -> None:
    for where in ("src", "wheel"):
        (tmp_path / where).mkdir()
        (tmp_path / where / "thing.py").write_text(f"WHERE = {where!r}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "test_thing.py").write_text(
        "import subprocess, sys, thing\n\n"
        "def test_here():\n    assert thing.WHERE == 'wheel'\n\n"
        "def test_there():\n"
        "    command = [sys.executable, '-c', 'import thing; assert thing.WHERE == \"wheel\"']\n"
        "    assert subprocess.run(command).returncode == 0\n"
    )
    ran = call(tmp_path, "[], ('others',)", "on_package(Path('wheel'), ['-p', 'no:cacheprovider']")
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_servers_that_tests_start_run_the_package_that_is_named(tmp_path: Path) -> None:
    copied = shutil.copytree(ROOT / "src", tmp_path / "wheel", ignore=shutil.ignore_patterns("__pycache__"))
    version = copied / "penstock" / "__init__.py"
    version.write_text(version.read_text() + '\n__version__ = "0.0.wheel"\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "test_server.py").write_text(
        "import urllib.request\n"
        "from tests.compat.server import serving\n\n"
        "def test_version(tmp_path):\n"
        "    with serving(tmp_path) as server:\n"
        "        url = f'http://127.0.0.1:{server.http_port}/version'\n"
        "        assert b'0.0.wheel' in urllib.request.urlopen(url).read()\n"
    )
    ran = call(tmp_path, "[], ('others',)", "on_package(Path('wheel'), ['-p', 'no:cacheprovider']")
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_nothing_that_tests_start_is_bound_to_the_sources() -> None:
    own = ("test_test_tool.py", "test_airflow.py")  # this file; a Python of its own, for which no wheel is built
    bound = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name not in own
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "PYTHONPATH" in line and re.search(r"ROOT / .src", line)
    ]
    assert bound == [], "use tests.package.PACKAGE"
