"""The examples of docs/rest.md run as they stand, against a real server; its tables name all there is."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

import penstock.protocols
from penstock.core import errors
from penstock.protocols.rest.pages import EXPLAINED
from penstock.protocols.rest.problems import STATUSES, code_of, status_of
from penstock.store import errors as store_errors
from tests.protocols.rest.serving import Server, needed
from tests.shards import one_shard_only

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "rest.md").read_text()
SOURCE = Path(penstock.protocols.__path__[0])
ANYTHING = "…"
BEFORE = (
    "set -eu -o pipefail",
    'curl() { command curl --fail-with-body --max-time 30 "$@"; }',
    "[ ! -e variables ] || . ./variables",
)
AFTER = ("declare -p RECEIPT SESSION ID >variables 2>/dev/null || true",)
"""Examples go on with the variables of those before."""


class Example(NamedTuple):
    """A block of commands, and what its last one prints."""

    commands: str
    fails: bool
    printed: Any


def examples() -> list[Example]:
    pattern = r"(<!-- fails -->\n)?```bash\n(.*?)```\n(?:```json\n(.*?)```\n)?"
    found = re.findall(pattern, TEXT, re.DOTALL)
    return [
        Example(commands, bool(fails), json.loads(printed) if printed else None) for fails, commands, printed in found
    ]


@one_shard_only
def test_every_example_runs_and_prints_what_it_says(serve: Callable[..., Server], tmp_path: Path) -> None:
    needed("bash")
    needed("curl")
    server = serve()
    for number, example in enumerate(examples()):
        block = "\n".join([*BEFORE, example.commands, *AFTER])
        run = subprocess.run(
            ["bash", "-c", block],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PENSTOCK": server.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        told = f"example {number}:\n{example.commands}\n{run.stdout}\n{run.stderr}"
        assert (run.returncode != 0) == example.fails, told
        if example.printed is not None:
            assert fits(example.printed, last_value(run.stdout)), told
    assert number == 23


def last_value(printed: str) -> Any:
    """The last of the JSON values that were printed end to end."""
    decoder, at, value = json.JSONDecoder(), 0, None
    while at < len(printed):
        value, at = decoder.raw_decode(printed, at)
    return value


def fits(expected: Any, found: Any) -> bool:
    if expected == ANYTHING:
        return True
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(fits(value, found[name]) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(fits, expected, found))
    return bool(expected == found)


def test_the_python_example_runs(serve: Callable[..., Server]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(example, {"PENSTOCK": serve().url})


def test_every_block_of_code_is_run_by_a_test() -> None:
    blocks = Counter(re.findall(r"^```(\w+)$", TEXT, re.MULTILINE))
    shown = sum(example.printed is not None for example in examples())
    assert blocks == {"bash": len(examples()), "json": shown, "python": 1, "javascript": 1}


@pytest.mark.parametrize("line", re.findall(r"^    (curl .*) …$", TEXT, re.MULTILINE))
def test_the_ways_to_give_credentials_open_the_server(serve: Callable[..., Server], line: str) -> None:
    needed("bash")
    needed("curl")
    server = serve("[[credentials]]\naccess_key = 'AK'\nsecret_key = 'secret'\ntoken = 'token'")
    right = {"TOKEN": "token", "ACCESS_KEY": "AK", "SECRET_KEY": "secret"}
    for given, status in ((right, "200"), (dict.fromkeys(right, "wrong"), "401")):
        command = f"{line} -s -o /dev/null -w '%{{http_code}}' {server.url}/v1/queues"
        environment = {"PATH": os.environ["PATH"], **given}
        run = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
        assert run.stdout == status, run.stderr


def test_there_are_three_ways_to_give_credentials() -> None:
    assert len(re.findall(r"^    (curl .*) …$", TEXT, re.MULTILINE)) == 3


def test_the_javascript_function_gives_the_vectors() -> None:
    needed("node")
    (function,) = re.findall(r"```javascript\n(.*?)```", TEXT, re.DOTALL)
    rows = re.findall(r"^\| `(.*)` \| (\d+) \| \d+ \|$", TEXT, re.MULTILINE)
    names = json.dumps([name for name, _ in rows])
    script = f"{function}\nconsole.log(JSON.stringify({names}.map((name) => murmur2(new TextEncoder().encode(name)))))"
    printed = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(printed) == [int(hashed) for _, hashed in rows]


def test_every_error_has_its_row_with_its_status() -> None:
    table = TEXT.partition("<!-- errors -->")[2].partition("<!-- /errors -->")[0]
    rows = {
        code: int(status)
        for codes, status in re.findall(r"^\| (`.*?`) \| (\d+) \|", table, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    mapped = tuple(type_ for type_, _ in STATUSES)
    for module in (errors, store_errors):
        for type_ in vars(module).values():
            if not (isinstance(type_, type) and issubclass(type_, mapped)):
                continue
            if issubclass(type_, UNSEEN) or type_.__subclasses__():
                continue
            error = type_("why")
            assert rows.get(code_of(error)) == status_of(error), code_of(error)


UNSEEN = (
    errors.ConnectionLost,
    store_errors.NotReadable,
    store_errors.StoreLocked,
    store_errors.StoreReadOnly,
    store_errors.StoreVersion,
    store_errors.StoreDamaged,
)
"""What no caller sees: a client's own errors, and those that keep a server from starting."""


def test_every_type_of_a_problem_leads_to_a_page_that_says_what_to_do(server: Server) -> None:
    in_code = {
        code for path in SOURCE.rglob("*.py") for code in re.findall(r'RestError\(\s*\d+,\s*"(\w+)"', path.read_text())
    }
    assert in_code >= {"path_not_found", "unauthorized", "internal_error"}
    listed = {each.code for each in EXPLAINED}
    assert in_code <= listed, "explain it in protocols/rest/pages.py"
    with httpx.Client(base_url=server.url) as client:
        problem = client.get("/v1/queues/nowhere").json()
        assert problem["type"] == "/v1/problems/queue_not_found"
        page = client.get(problem["type"])
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "Create it, or send a message to it." in page.text
        every = client.get("/v1/problems").text
        for code in listed:
            assert f"/v1/problems/{code}'" in every
            assert client.get(f"/v1/problems/{code}").status_code == 200
        assert client.get("/v1/problems/unheard_of").json()["code"] == "path_not_found"
