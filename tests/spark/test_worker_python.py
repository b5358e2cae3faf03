"""`penstock-python`: Spark's workers take the installed pyspark, not the archive beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import penstock
from penstock.spark.worker_python import worker_python

ARCHIVES = sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"))
PACKAGE = str(Path(penstock.__file__).parents[1])
"""Of the penstock that is tested: sources, or an unpacked wheel."""
WHERE = "import pyspark, py4j; print(pyspark.__file__); print(py4j.__file__)"


def asked(program: list[str], path: list[str], code: str, **variables: str) -> list[str]:
    """What a program prints that Spark would start with this path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*path, PACKAGE])} | variables
    command = [*program, "-c", code, "one", "two words"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout.splitlines()


@pytest.fixture(params=["module", "program"])
def program(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "module":
        return [sys.executable, "-m", "penstock.spark.worker_python"]
    if worker_python() == sys.executable:
        assert not os.environ.get("CI"), "penstock-python is not installed"
        pytest.skip("penstock-python is not installed here: pip install --editable .")
    return [worker_python()]


def test_spark_hides_the_installed_modules_behind_its_archives() -> None:
    """Else there would be no use for the program."""
    assert len(ARCHIVES) == 2
    found = asked([sys.executable], [str(each) for each in ARCHIVES], WHERE)
    assert all(".zip" in file for file in found)


def test_workers_take_the_installed_modules(program: list[str]) -> None:
    found = asked(program, [str(each) for each in ARCHIVES], WHERE)
    assert found[0] == pyspark.__file__
    assert not any(".zip" in file for file in found)


def test_other_entries_of_the_path_and_all_arguments_stay(program: list[str], tmp_path: Path) -> None:
    other = tmp_path / "pyspark.zip"
    path = [str(other), str(ARCHIVES[0]), str(tmp_path)]
    code = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.argv[1:])"
    assert asked(program, path, code) == [os.pathsep.join([str(other), str(tmp_path), PACKAGE]), "['one', 'two words']"]


def test_the_number_of_threads_stays_what_spark_says(program: list[str]) -> None:
    assert asked(program, [], "import os; print(os.environ['OMP_NUM_THREADS'])", OMP_NUM_THREADS="3") == ["3"]
