"""The image, the chart, the unit and the workflows, as far as they can be checked without an engine to run them."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from docs import monitoring
from penstock.cli.pipelines import pipelines
from penstock.pipelines.definition import load
from penstock.server.sources import ACCESS_KEY, SECRET_KEY, VARIABLES, gathered
from tools.debian import DebianError, program
from tools.image import DOCKERFILE, ImageError, instructions, stages

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "penstock"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OURS = {*VARIABLES, ACCESS_KEY, SECRET_KEY, "PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_COMPILE"}


@pytest.mark.parametrize(
    "path", [ROOT / "Dockerfile", DEPLOY / "compose" / "spark.Dockerfile"], ids=lambda path: path.name
)
def test_an_image_copies_what_is_there_and_does_not_run_as_root(path: Path) -> None:
    said = instructions(path)
    for instruction, rest in said:
        if instruction == "COPY" and not rest.startswith("--from"):
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists(), f"COPY {name}"
        if instruction == "RUN":
            assert "|| true" not in rest, "a step that fails must fail the build"
            assert "apt-get install" not in rest or (
                "--no-install-recommends" in rest and "rm -rf /var/lib/apt" in rest
            )
    users = [rest for instruction, rest in said if instruction == "USER"]
    assert users and not users[-1].startswith(("0", "root"))


def test_the_image_is_told_settings_that_there_are_and_a_health_check_that_is_served() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert set(re.findall(r"\bPENSTOCK_\w+", text)) <= OURS
    assert "/readyz" in text
    ignored = (ROOT / ".dockerignore").read_text()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "constraints.txt", "src", "tools"):
        assert f"!{name}\n" in ignored


def test_the_image_can_be_built_without_an_engine_and_says_how_it_is_run(tmp_path: Path) -> None:
    """`make image-test` does it, as root; here it is only read."""
    (build, made), (image, copied) = stages(DOCKERFILE, tmp_path)
    assert (build.base, image.base) == ("python:3.13-slim", "scratch")
    assert ("COPY", "src src") in made and ("COPY", "--from=build /image /") in copied
    assert (image.user, image.volumes, image.directory) == ("10001:10001", ["/data"], "/data")
    assert (image.entrypoint, image.command, image.stop_signal) == (["penstock"], ["serve"], "SIGTERM")
    assert image.health[:2] == ["python", "-c"]
    assert image.environment["PATH"] == "/penstock/bin"


def test_the_server_beside_spark_has_what_spark_reads(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    assert "arrow" in compose["penstock"]["build"]["args"]["EXTRAS"].split(",")
    (build, _), _ = stages(DOCKERFILE, tmp_path, {"EXTRAS": "kafka,arrow"})
    assert build.environment["EXTRAS"] == "kafka,arrow"
    assert "[${EXTRAS}]" in DOCKERFILE.read_text()
    (build, _), _ = stages(DOCKERFILE, tmp_path)
    assert build.environment["EXTRAS"] == "kafka"


def test_a_compiled_build_needs_a_compiler_before_it_downloads_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = types.SimpleNamespace(BuildHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook = module.CompileHook()
    monkeypatch.delenv("PENSTOCK_COMPILE", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert hook.dependencies() == []
    monkeypatch.setenv("PENSTOCK_COMPILE", "1")
    with pytest.raises(SystemExit, match="needs a C compiler"):
        hook.dependencies()


def test_an_instruction_that_the_build_without_an_engine_does_not_know_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.13-slim\nADD a b\n")
    with pytest.raises(ImageError, match="has ADD"):
        list(stages(tmp_path / "Dockerfile", tmp_path))


def test_credentials_of_the_image_open_the_server_to_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"PENSTOCK_HOST": "0.0.0.0", ACCESS_KEY: "me", SECRET_KEY: "secret"}
    monkeypatch.setenv(SECRET_KEY, "secret")
    gathered(None, environment).check()


def of_compose(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["services"]


@pytest.mark.parametrize("path", [ROOT / "compose.yaml", DEPLOY / "compose" / "compose.yaml"], ids=str)
def test_composed_services_know_each_other_and_listen_on_this_machine_only(path: Path) -> None:
    services = of_compose(path)
    volumes = yaml.safe_load(path.read_text())["volumes"]
    for name, service in services.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port}"
        for other in service.get("depends_on", ()):
            assert other in services
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in volumes or (path.parent / source).exists(), volume
        unknown = {each for each in service.get("environment", {}) if each.startswith("PENSTOCK_")} - OURS
        assert not unknown
    if "penstock" in services:
        environment = {key: str(value) for key, value in services["penstock"]["environment"].items()}
        gathered(None, {key: value for key, value in environment.items() if key not in (ACCESS_KEY, SECRET_KEY)})


def test_dashboards_and_alerts_ask_for_metrics_that_exist() -> None:
    boards = sorted((DEPLOY / "compose" / "grafana" / "dashboards").glob("*.json"))
    asked = [
        each["expr"] for path in boards for panel in json.loads(path.read_text())["panels"] for each in panel["targets"]
    ]
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(boards) == 2 and len(rules) == len(monitoring.ALERTS)
    for expression in [*asked, *(rule["expr"] for rule in rules)]:
        monitoring.checked(expression)
    with pytest.raises(AssertionError, match="there is no metric penstock_nosuch"):
        monitoring.checked("rate(penstock_nosuch[1m])")


def test_promtool_takes_the_alert_rules_and_the_scrape_configuration(tmp_path: Path) -> None:
    try:
        promtool = program("prometheus", "promtool")
    except DebianError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"THIS TEST DID NOT RUN: {error}")

    def checked(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [promtool.path, "check", *map(str, arguments)]
        return subprocess.run(command, env=promtool.environment, capture_output=True, text=True, check=False)

    rules = DEPLOY / "prometheus" / "alerts.yml"
    assert f"SUCCESS: {len(monitoring.ALERTS)} rules found" in checked("rules", rules).stdout
    shutil.copy(rules, tmp_path)
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    shown = re.search(r'```yaml title="prometheus.yml"\n(.*?)```', page, re.DOTALL)
    assert shown is not None
    (tmp_path / "prometheus.yml").write_text(shown[1])
    found = checked("config", tmp_path / "prometheus.yml")
    assert found.returncode == 0 and "1 rule files found" in found.stdout, found.stderr
    (tmp_path / "wrong.yml").write_text(rules.read_text().replace("up{job=", "up{{job="))
    assert checked("rules", tmp_path / "wrong.yml").returncode != 0


@pytest.mark.parametrize("path", monitoring.FILES, ids=lambda path: path.name)
def test_alerts_and_the_dashboard_of_a_cluster_are_made_of_the_metrics_that_there_are(path: Path) -> None:
    assert path.read_text() == monitoring.FILES[path](), "run python -m docs.draw"


def test_the_chart_uses_values_that_it_has_and_sets_settings_that_there_are() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for template in (CHART / "templates").iterdir():
        text = template.read_text()
        for dotted in re.findall(r"\.Values\.([\w.]+)", text):
            found: Any = values
            for part in dotted.split("."):
                assert part in found, f"{template.name}: .Values.{dotted}"
                found = found[part]
        assert set(re.findall(r"\bPENSTOCK_\w+", text)) <= OURS, template.name
    assert json.loads((CHART / "values.schema.json").read_text())["type"] == "object"
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version and yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version[1]


def test_the_unit_starts_stops_and_reloads_the_server() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "penstock.service")
    service = unit["Service"]
    assert shlex.split(service["ExecStart"])[1:2] == ["serve"]
    assert "HUP" in service["ExecReload"] and service["DynamicUser"] == "yes"
    assert service["Environment"].split("=")[0] in OURS
    assert int(service["TimeoutStopSec"]) > 10


def test_the_page_writes_the_settings_that_the_unit_needs(tmp_path: Path) -> None:
    """A server of its own reads them, as pasted: without the file, systemd would start none."""
    page = (ROOT / "docs" / "deploy.md").read_text().partition("## systemd")[2]
    found = re.search(r"cat > (\S+) <<'END'\n(.*?)^END\n.*systemctl enable", page, re.DOTALL | re.MULTILINE)
    assert found and f"--config {found[1]}\n" in (DEPLOY / "systemd" / "penstock.service").read_text()
    (tmp_path / "penstock.toml").write_text(found[2])
    gathered(tmp_path / "penstock.toml", {"PENSTOCK_DATA": str(tmp_path)}).check()
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert "deploy" in package["include"]


def test_systemd_finds_nothing_in_the_unit(tmp_path: Path) -> None:
    """It looks for the program, which is not where the unit has it; what it finds is on the error stream."""
    unit = (DEPLOY / "systemd" / "penstock.service").read_text().replace("/opt/penstock/bin/penstock", sys.executable)
    (tmp_path / "penstock.service").write_text(unit)
    try:
        verify = program("systemd", "systemd-analyze")
    except DebianError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    command = [verify.path, "verify", "--man=no", tmp_path / "penstock.service"]
    ended = subprocess.run(command, env=verify.environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_there_are_and_pin_their_actions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        for needed in [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", ()):
            assert needed in workflow["jobs"], name
        for step in job["steps"]:
            assert "uses" not in step or "@" in step["uses"]
            for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
                assert target in targets, f"make {target}"


def test_a_release_has_a_wheel_for_each_python_that_the_package_names() -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    steps = release["jobs"]["wheels"]["steps"]
    built = next(step["env"]["CIBW_BUILD"] for step in steps if "env" in step)
    named = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    assert [f"cp{each.replace('.', '')}-*" for each in named] == built.split()


def test_the_notes_of_a_release_are_those_of_its_version(tmp_path: Path) -> None:
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["release"]["steps"]
    (command,) = [step["run"] for step in steps if "notes.md" in step.get("run", "") and "awk" in step["run"]]
    older = "\n## [0.0.9] - 2026-01-01\n\nOf long ago.\n"
    (tmp_path / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text() + older)
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    environment = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": f"v{version}"}
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, env=environment, check=True)
    notes = (tmp_path / "notes.md").read_text()
    assert "### Added" in notes and "Of long ago." not in notes


# -- by the tools of the trade, which come as wheels -------------------------------------------------------------------

KUBERNETES = ("1.25", "1.37")
"""The oldest and the newest version that the chart is checked against."""
CHARTS = {
    "one server": (),
    "a cluster on Kafka": ("--set=replicas=3", "--set=kafka.bootstrap=kafka:9092"),
    "with everything": (
        "--set=serviceMonitor.enabled=true",
        "--set=service.annotations.a=b",
        "--set=podAnnotations.a=b",
        "--set=hosts={queues.example.com}",
        "--set=settings=[log]\nlevel = 'debug'",
        "--set=env[0].name=PENSTOCK_LOG_LEVEL,env[0].value=info",
    ),
    "pipelines": ("--values=tests/deploy/pipelines.yaml",),
}


def run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program that a wheel has brought, beside this Python."""
    program = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None and not os.environ.get("CI"):
        pytest.skip(f"NOT CHECKED: {name} is not here; `make venv` installs it")
    assert program is not None, f"{name} is not here"
    return subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_hadolint_finds_nothing_in_the_images() -> None:
    ended = run_tool("hadolint", "--no-color", "Dockerfile", "deploy/compose/spark.Dockerfile")
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.parametrize("options", CHARTS.values(), ids=CHARTS)
def test_helm_makes_objects_of_the_chart_that_kubernetes_takes(options: tuple[str, ...]) -> None:
    assert run_tool("helm", "lint", "--strict", str(CHART)).returncode == 0
    made = run_tool("helm", "template", "queues", str(CHART), *options)
    assert made.returncode == 0, made.stderr
    documents = [each for each in yaml.safe_load_all(made.stdout) if each]
    kinds = {each["kind"] for each in documents}
    assert kinds >= {"StatefulSet", "Service", "Secret", "ConfigMap", "PodDisruptionBudget"}
    for document in documents:
        if document["kind"] != "ServiceMonitor":  # not Kubernetes' own: the Prometheus operator defines it
            for version in KUBERNETES:
                kubernetes_validate.validate(document, version, strict=True)


def test_pipelines_of_the_chart_run_as_their_flags_say_with_secrets_from_the_environment(tmp_path: Path) -> None:
    made = run_tool("helm", "template", "queues", str(CHART), *CHARTS["pipelines"])
    assert made.returncode == 0, made.stderr
    documents = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(made.stdout) if each}
    name, run = "queues-penstock-pipeline-", pipelines.functions["run"]()
    job = documents["CronJob", f"{name}orders"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    stream = documents["Deployment", f"{name}clicks"]["spec"]["template"]["spec"]
    for pod, kind in ((job, "orders"), (stream, "clicks")):
        (container,) = pod["containers"]
        assert not [each for each in container["env"] if "token" in each["name"].lower() and "$(" not in each["value"]]
        for file, text in documents["ConfigMap", f"{name}{kind}"]["data"].items():
            (tmp_path / file).write_text(text)
            words = [word.replace("/pipeline/", "") for word in container["args"][1:] if not word.startswith("-")]
            assert words == ["pipeline", "run", file, *words[3:]]
            assert load(tmp_path / file).name == kind
        run.make_context("run", container["args"][3:])  # its flags are understood
    assert "--once" in job["containers"][0]["args"] and "--continuous" in stream["containers"][0]["args"]
    refused = run_tool("helm", "template", "queues", str(CHART), "--set=pipelines[0].name=a,pipelines[0].definition=b")
    assert refused.returncode != 0 and "state" in refused.stderr


def test_several_replicas_without_kafka_are_refused_by_the_chart() -> None:
    refused = run_tool("helm", "template", "queues", str(CHART), "--set=replicas=3")
    assert refused.returncode != 0 and "kafka.bootstrap is needed" in refused.stderr
