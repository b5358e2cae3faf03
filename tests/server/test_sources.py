"""Flags, environment variables, penstock.toml, defaults: which one counts, and what is said of a bad one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.settings import declared
from penstock.server.settings import SECTIONS, InvalidSettings, Settings, parse
from penstock.server.sources import VARIABLES, flags_of, gathered, unknown_variables


def file(directory: Path, text: str) -> Path:
    (directory / "penstock.toml").write_text(text)
    return directory / "penstock.toml"


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(tmp_path: Path) -> None:
    path = file(tmp_path, "[server]\nsqs_port = 1\nhttp_port = 1\nnsq_tcp_port = 1")
    environment = {"PENSTOCK_SQS_PORT": "2", "PENSTOCK_HTTP_PORT": "2"}
    server = gathered(path, environment, {"sqs_port": "3", "host": None}, flags_of("server")).server
    assert (server.sqs_port, server.http_port, server.nsq_tcp_port, server.nsq_http_port) == (3, 2, 1, 4151)


def test_variables_have_the_section_in_front_and_every_kind_of_value_is_read() -> None:
    environment = {
        "PENSTOCK_LOG_LEVEL": "debug",
        "PENSTOCK_INSECURE": "true",
        "PENSTOCK_HOSTS": "a.example.org, b.example.org",
        "PENSTOCK_NSQ_LATENCY_PERCENTILES": "0.5,0.99",
        "PENSTOCK_HTTP_BODY_TIMEOUT_S": "1.5",
        "PENSTOCK_SQS_ACCOUNT": "123456789012",
        "PENSTOCK_CLUSTER_NODE": "",
    }
    settings = gathered(None, environment)
    assert settings.log.level == "debug" and settings.server.insecure
    assert settings.server.hosts == ["a.example.org", "b.example.org"]
    assert settings.nsq.latency_percentiles == [0.5, 0.99]
    assert settings.http.body_timeout_s == 1.5
    assert settings.sqs.account == "123456789012"
    assert settings.cluster.node is None, "an empty variable is not set"
    assert not list(unknown_variables(environment, settings))


def test_none_takes_back_what_the_file_says(tmp_path: Path) -> None:
    path = file(tmp_path, "[rest]\nrequests_per_second = 5")
    assert gathered(path, {"PENSTOCK_REST_REQUESTS_PER_SECOND": "none"}).rest.requests_per_second is None


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("PENSTOCK_SQS_PORT", "x", "PENSTOCK_SQS_PORT is 'x': it must be a whole number from 0 to 65535"),
        ("PENSTOCK_SQS_PORT", "65536", "PENSTOCK_SQS_PORT is 65536: it must be from 0 to 65535"),
        ("PENSTOCK_LOG_LEVEL", "loud", "PENSTOCK_LOG_LEVEL is 'loud': it must be debug, info, warning or error"),
        ("PENSTOCK_INSECURE", "yes", "PENSTOCK_INSECURE is 'yes': it must be true or false"),
        (
            "PENSTOCK_HTTP_BODY_TIMEOUT_S",
            "0",
            "PENSTOCK_HTTP_BODY_TIMEOUT_S is 0 seconds: it must be larger than 0 seconds",
        ),
        ("PENSTOCK_NSQ_LATENCY_PERCENTILES", "a", "PENSTOCK_NSQ_LATENCY_PERCENTILES is '[a]': it must be a list"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(variable: str, text: str, words: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        gathered(None, {variable: text})
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("text", "variables", "flags", "words"),
    [
        ("", {"PENSTOCK_SQS_ACCOUNT": "12"}, (), "PENSTOCK_SQS_ACCOUNT is '12': an account has 12 digits"),
        ("[sqs]\naccount = '12'", {}, (), "penstock.toml: [sqs] account is '12': an account has 12 digits"),
        ("", {"PENSTOCK_NSQ_LOOKUP": "a"}, ("--lookup", "b"), "--lookup is 'b': give HOST:PORT"),
        ("", {}, ("--host", "a..b"), "--host is 'a..b', which is not an address of this machine"),
        ("[server]\nsqs_port = 'many'", {}, ("--sqs-port", "0"), "penstock.toml: [server] sqs_port is 'many': it must"),
        (
            "[server]\nsqs_port = 0",
            {"PENSTOCK_SQS_PORT": "x"},
            ("--sqs-port", "0"),
            "PENSTOCK_SQS_PORT is 'x': it must",
        ),
        ("[server]\nsqs_port = 0", {}, ("--sqs-port", "x"), "--sqs-port is 'x': it must"),
        (
            "[server]\ntls_certificate = 'no.pem'\ntls_key = 'no.key'",
            {"PENSTOCK_TLS_CERTIFICATE": __file__},
            ("--sqs-port", "0", "--http-port", "0", "--nsq-tcp-port", "0", "--nsq-http-port", "0"),
            "penstock.toml: [server] tls_key: no.key cannot be read: No such file or directory",
        ),
    ],
)
def test_the_command_names_what_held_the_bad_value(
    tmp_path: Path, text: str, variables: dict[str, str], flags: tuple[str, ...], words: str
) -> None:
    file(tmp_path, text)
    command = [sys.executable, "-m", "penstock", "serve", "--data", ":memory:", "--config", "penstock.toml", *flags]
    ended = subprocess.run(
        command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and ended.stderr.startswith(f"penstock: {words}"), ended.stderr


def test_no_two_settings_share_a_variable_or_a_flag() -> None:
    settings = [(section, each) for section, struct in SECTIONS.items() for each in declared(struct)]
    without = {("kafka", name) for name in ("properties", "properties_env", "properties_file", "topic_properties")}
    assert len(VARIABLES) == len(settings) - len(without)
    flags = [place.setting.setting.flag for place in VARIABLES.values() if place.section != "lookup"]
    given = [flag for flag in flags if flag is not None]
    assert (
        len(given) == len(set(given)) == len(flags_of("server", "nsq", "sqs", "rest", "kafka", "zookeeper", "cluster"))
    )


def test_a_credential_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", "of the variable")
    environment = {"PENSTOCK_ACCESS_KEY": "AK", "PENSTOCK_SECRET_KEY": "of the variable"}
    credentials = gathered(None, environment).open_credentials()
    assert credentials.check_password("AK", "of the variable") is not None
    assert credentials.check_password("AK", "another") is None
    (tmp_path / "secret").write_text("of the file\n")
    (tmp_path / "penstock.toml").write_text("[[credentials]]\naccess_key = 'B'\nsecret_key = 'b'")
    environment = {"PENSTOCK_ACCESS_KEY": "AK", "PENSTOCK_SECRET_KEY_FILE": str(tmp_path / "secret")}
    both = gathered(tmp_path / "penstock.toml", environment).open_credentials()
    assert both.check_password("AK", "of the file") is not None and both.check_password("B", "b") is not None
    assert not list(unknown_variables(environment, Settings()))


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (
            {"PENSTOCK_ACCESS_KEY": "AK"},
            "PENSTOCK_ACCESS_KEY is set, and its secret is not: set PENSTOCK_SECRET_KEY or PENSTOCK_SECRET_KEY_FILE",
        ),
        ({"PENSTOCK_SECRET_KEY": "s"}, "PENSTOCK_SECRET_KEY is set, and PENSTOCK_ACCESS_KEY is not: set both"),
        (
            {"PENSTOCK_SECRET_KEY_FILE": "/s"},
            "PENSTOCK_SECRET_KEY_FILE is set, and PENSTOCK_ACCESS_KEY is not: set both",
        ),
        (
            {"PENSTOCK_ACCESS_KEY": "AK", "PENSTOCK_SECRET_KEY": "s", "PENSTOCK_SECRET_KEY_FILE": "/s"},
            "PENSTOCK_SECRET_KEY and PENSTOCK_SECRET_KEY_FILE are both set: set one of them",
        ),
    ],
)
def test_half_a_credential_in_the_environment_is_refused(environment: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSettings, match=f"^{told}$"):
        gathered(None, environment)


def test_a_mistyped_credential_is_told_too() -> None:
    environment = {"PENSTOCK_ACCESS_KEY_ID": "a", "PENSTOCK_SECRET_KEYFILE": "b"}
    assert list(unknown_variables(environment, gathered(None, environment))) == [
        "PENSTOCK_ACCESS_KEY_ID is not a setting (did you mean PENSTOCK_ACCESS_KEY?)",
        "PENSTOCK_SECRET_KEYFILE is not a setting (did you mean PENSTOCK_SECRET_KEY_FILE?)",
    ]


def test_a_mistyped_variable_is_told_with_the_one_that_is_meant() -> None:
    told = list(unknown_variables({"PENSTOCK_SQS_PROT": "1", "PENSTOCK_TOKEN": "t", "PATH": "/bin"}, Settings()))
    assert told == ["PENSTOCK_SQS_PROT is not a setting (did you mean PENSTOCK_SQS_PORT?)"]
    assert list(
        unknown_variables({"PENSTOCK_HTPP_PORT": "1", "PENSTOCK_MAIL_PORT": "tcp://10.0.0.1:25"}, Settings())
    ) == ["PENSTOCK_HTPP_PORT is not a setting (did you mean PENSTOCK_HTTP_PORT?)"]


def test_a_variable_that_the_settings_name_is_known() -> None:
    settings = parse(
        "[[credentials]]\naccess_key = 'a'\nsecret_key_env = 'PENSTOCK_KEY_OF_A'\n"
        "[cluster]\nsecret_env = 'PENSTOCK_KEY_OF_ALL'"
    )
    assert not list(unknown_variables({"PENSTOCK_KEY_OF_A": "s", "PENSTOCK_KEY_OF_ALL": "s"}, settings))


def test_what_kubernetes_sets_for_services_of_our_name_is_no_setting() -> None:
    environment = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT_SQS": "9324",
        "PENSTOCK_PORT": "tcp://10.0.0.1:9324",
        "PENSTOCK_PORT_9324_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_SQS_PORT": "tcp://10.0.0.1:9324",
    }
    assert gathered(None, environment).server.sqs_port == 9324
    (told,) = unknown_variables(environment, Settings())
    assert told.startswith("PENSTOCK_SQS_PORT is tcp://10.0.0.1:9324, as Kubernetes sets it")


def test_a_secret_of_the_wrong_kind_is_not_shown() -> None:
    for text in ("[cluster]\nsecret = 12345", "[kafka]\nproperties = ['12345']"):
        with pytest.raises(InvalidSettings) as refused:
            parse(text)
        assert "12345" not in str(refused.value) and "is not right" in str(refused.value)


def test_the_command_reads_the_environment_and_warns_of_what_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOST", "0.0.0.0")
    monkeypatch.setenv("PENSTOCK_SQS_PROT", "1")
    command = [sys.executable, "-m", "penstock", "serve", "--data", ":memory:"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "host '0.0.0.0' can be reached from other machines" in ended.stderr
    command = [sys.executable, "-m", "penstock", "serve", "--data", "/dev/null/nowhere", "--host", "127.0.0.1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PENSTOCK_SQS_PROT is not a setting (did you mean PENSTOCK_SQS_PORT?)" in ended.stderr
