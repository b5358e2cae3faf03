from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.server.auth import Credentials, Secret
from penstock.server.settings import (
    SECTIONS,
    Allowance,
    ClusterSettings,
    CredentialSettings,
    HandshakeRule,
    InvalidSettings,
    Settings,
    is_loopback,
    load,
    parse,
)

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "server.md"

WHOLE = """
[server]
data = "/var/lib/penstock"
host = "0.0.0.0"
sqs_port = 1
http_port = 2
nsq_tcp_port = 3
nsq_http_port = 4
insecure = true
commit_in_thread = true
stop_grace_s = 2.5

[http]
header_bytes_max = 1
body_bytes_max = 2
connections_max = 3
pipelined_max = 4
header_timeout_s = 5
body_timeout_s = 6
idle_timeout_s = 7

[sqs]
limits = "relaxed"
region = "eu-west-1"
account = "123456789012"
auto_create = true

[log]
format = "json"
level = "debug"
requests = "all"

[[credentials]]
access_key = "AKADMIN"
secret_key = "admin secret"

[[credentials]]
name = "worker"
access_key = "AKWORKER"
secret_key_env = "PENSTOCK_TEST_SECRET"

[[credentials.allow]]
queues = "orders*"
rights = ["read", "write"]

[[credentials.allow]]
queues = ["billing", "audit-?"]
rights = ["admin"]

[[queues]]
name = "orders"
lease = 5
retention = "none"
max_receives = 3
dead_letter = "orders-dead"
tags = { team = "sales" }
backoff = { shape = "linear", base_ms = 100 }

[[queues]]
name = "orders-dead"

[[queues]]
name = "billing.fifo"
content_dedup = true
"""


def test_every_key_of_the_reference_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "worker secret")
    settings = parse(WHOLE)
    settings.check()
    assert settings.server.data == "/var/lib/penstock"
    assert settings.http.idle_timeout_s == 7
    assert settings.sqs.limits == "relaxed"
    assert settings.log.requests == "all"
    worker = settings.open_credentials().check_password("AKWORKER", "worker secret")
    assert worker is not None
    assert worker.name == "worker"


def test_an_empty_file_is_the_defaults() -> None:
    assert parse("") == Settings()
    Settings().check()


def test_queues_are_declared_in_seconds_and_become_the_cores_settings() -> None:
    orders, _, billing = parse(WHOLE).queues
    changes = orders.changes()
    assert changes["lease_ms"] == 5_000
    assert changes["retention_ms"] is None
    assert changes["dead_letter"] == "orders-dead"
    assert "delay_ms" not in changes
    assert billing.changes() == {"content_dedup": True}
    assert billing.config().is_fifo


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 1", r"\[server\] has no key 'prot'.*its keys are: data, engine, host, sqs_port"),
        ("[server]\nsqs_prot = 1", "did you mean 'sqs_port'"),
        ("[sever]\nhost = 'x'", "the file has no key 'sever' .did you mean 'server'"),
        ("[[queues]]\nname = 'a'\nleese = 1", r"\[\[queues\]\] has no key 'leese' .did you mean 'lease'"),
        ("[[queues]]\nname = 'a'\n[[queues]]\nlease = 1", r"\[\[queues\]\] number 2 has no 'name': it needs one"),
        ("[[credentials]]\ntoken = 't'", r"\[\[credentials\]\] number 1 has no 'access_key': it needs one"),
        (
            "[[credentials]]\naccess_key = 'a'\n[[credentials.allow]]\nqueues = 'q'",
            r"\[\[credentials.allow\]\] number 1 has no 'rights': it needs one",
        ),
        (
            "[[credentials]]\naccess_key='a'\nsecret_key='b'\n[[credentials.allow]]\nright=['read']",
            r"\[\[credentials.allow\]\] has no key 'right' .did you mean 'rights'",
        ),
        (
            "[server]\nsqs_port = 'x'",
            r"penstock.toml: \[server\] sqs_port is 'x': it must be a whole number from 0 to 65535",
        ),
        ("[sqs]\nlimits = 'loose'", r"\[sqs\] limits is 'loose': it must be aws, strict or relaxed"),
        ("[[credentials]]\nsecret_key = 'b'", r"\[\[credentials\]\] number 1 has no 'access_key'"),
        ("server = 3", "Expected `object`, got `int`"),
        ("[server\n", "is not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(text: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nsqs_port = 65536", "sqs_port is 65536: it must be from 0 to 65535"),
        ("[nsq]\nready_max = 0", "ready_max is 0: it must be 1 or more"),
        ("[nsq]\ndeflate_level_max = 10", "deflate_level_max is 10: it must be from 1 to 9"),
        ("[nsq]\nmessage_timeout_s = 1000", "must not be larger than message_timeout_max_s"),
        ("[nsq]\ntls_required = true", "tls_required needs .server. tls_certificate"),
        ("[[nsq.handshake]]\nreceipt_timeout_s = 0", "receipt_timeout_s is 0"),
        ("[nsq]\nlookup = ['nowhere']", "lookup is 'nowhere': give HOST:PORT"),
        ("[nsq]\nlookup = ['::1:4160']", "give HOST:PORT"),
        ("[nsq]\nlatency_percentiles = [99]", "latency_percentiles has 99"),
        ("[server]\ntls_key = 'x'", "tls_certificate and tls_key go together"),
        ("[server]\nhost = 'no such host.invalid'", "not an address of this machine"),
        ("[sqs]\naccount = '12'", "12 digits"),
        ("[http]\nbody_bytes_max = 0", "body_bytes_max is 0"),
        ("[[queues]]\nname = 'a b'", "cannot name a queue"),
        ("[[queues]]\nname = 'a'\nlease = -1", "'a': lease is -1 seconds: it must be from 0 to 43200 seconds"),
        ("[[queues]]\nname = 'a'\nlease = 'long'", "'a': lease is 'long': it must be a number of seconds from 0 to"),
        ("[[queues]]\nname = 'a'\nlease = 1e308", "'a': lease is 1e\\+308: it must be a number of seconds from 0 to"),
        ("[[queues]]\nname = 'a'\nlease = 'none'", "'a': lease is 'none': it must be a number of seconds from 0 to"),
        ("[[queues]]\nname = 'a'\nbackoff = { shape = 'x' }", "backoff.shape is 'x': it must be none, fixed, linear"),
        ("[[queues]]\nname = 'a'\npartitions = 0", "'a': partitions is 0: it must be from 1 to 1024"),
        ("[[queues]]\nname = 'a'\ncontent_dedup = true", "FIFO"),
        ("[[queues]]\nname = 'a'\n[[queues]]\nname = 'a'", "declared twice"),
        ("[[queues]]\nname = 'a.fifo'\nkind = 'standard'", r"a name that ends with \.fifo makes a FIFO queue"),
        ("[events]\nenabled = true\nqueue = 'a.fifo'", r"a name that ends with \.fifo makes a FIFO queue"),
        ("[events]\nretention_s = inf", "retention_s is inf: it must be a number of seconds larger than 0"),
        ("[nsq]\nclient_timeout_s = inf", "client_timeout_s is inf: it must be a number of seconds larger than 0"),
        ("[http]\nidle_timeout_s = 1e308", "idle_timeout_s is 1e\\+308: it must be a number of seconds larger than 0"),
        ("[nsq]\nmessage_timeout_s = 5e4", "message_timeout_s is 50000 seconds: it must be larger than 0, up to 43200"),
        ("[nsq]\nin_flight_max = 20_000_000", "in_flight_max is 20000000: it must be from 1 to 10000000"),
        (f"[server]\nsqs_port = {'9' * 5_000}", "is not TOML"),
        (f"[server]\nhosts = {'[' * 3_000}", "is not TOML: it is nested too deeply"),
    ],
)
def test_what_cannot_be_followed_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        parse(text).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_other_machines_are_served_only_with_credentials_or_on_purpose(host: str) -> None:
    open_to_all = Settings().overridden("server", host=host)
    with pytest.raises(InvalidSettings, match="--insecure"):
        open_to_all.check()
    open_to_all.overridden("server", insecure=True).check()
    guarded = parse("[[credentials]]\naccess_key = 'a'\nsecret_key = 'b'").overridden("server", host=host)
    guarded.check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "::1"])
def test_this_machine_is_served_without_credentials(host: str) -> None:
    assert is_loopback(host)
    Settings().overridden("server", host=host).check()


def test_flags_override_the_file_only_where_they_are_given() -> None:
    settings = parse("[server]\nsqs_port = 1\nhttp_port = 2").overridden("server", sqs_port=0, http_port=None)
    assert (settings.server.sqs_port, settings.server.http_port) == (0, 2)
    assert parse("[sqs]\nregion = 'x'").overridden("sqs", limits="relaxed").sqs.region == "x"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"missing\.toml cannot be read"):
        load(tmp_path / "missing.toml")
    (tmp_path / "there.toml").write_text("[server]\nsqs_port = 5")
    assert load(tmp_path / "there.toml").server.sqs_port == 5


def test_the_examples_of_the_documentation_are_right_and_name_every_key() -> None:
    text = DOCUMENTATION.read_text()
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    for example in examples:
        parse(example)
    structs: tuple[Any, ...] = (*SECTIONS.values(), HandshakeRule, CredentialSettings, Allowance)
    keys = {key for struct in structs for key in struct.__struct_fields__}
    missing = [key for key in keys if not re.search(rf"\b{key}\b", text) and not key.startswith("nsq_")]
    assert examples
    assert not missing


# -- the cluster and Kafka ---------------------------------------------------------------------------------------------


def kafka_settings(text: str) -> Settings:
    settings = parse(f"[server]\nengine = 'kafka'\n{text}")
    settings.check()
    return settings


def test_a_cluster_has_sixteen_shards_and_names_its_topics_and_nodes_after_itself() -> None:
    options = kafka_settings("[cluster]\nname = 'demo'").kafka_options()
    assert (options.data_topic, options.offset_topic, options.shards) == ("demo.data", "demo.offset", 16)
    assert options.transactional_id(3) == "demo-shard-3"
    assert ClusterSettings().node_name
    assert kafka_settings("[cluster]\nname = 'demo'\nprefix = 'a.b'").kafka_options().data_topic == "a.b.data"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[cluster]\nname = ''", r"\[cluster\] name is ''"),
        ("[cluster]\nname = 'a b'", r"\[cluster\] name is 'a b'"),
        ("[cluster]\nprefix = '..'", r"\[cluster\] prefix"),
        ("[cluster]\nnode = '/'", r"\[cluster\] node"),
        ("[cluster]\nshards = 0", r"\[cluster\] shards is 0: it must be from 1 to 4096"),
        ("[cluster]\nlink_port = 65536", r"\[cluster\] link_port"),
        ("[cluster]\nlink_address = 'node1'", r"\[cluster\] link_address is 'node1': give HOST:PORT"),
        ("[cluster]\nsession_timeout_s = 0.5", r"\[cluster\] session_timeout_s"),
        ("[cluster]\nlink_host = '0.0.0.0'", r"link_host '0.0.0.0' can be reached .* there is no secret"),
        ("[cluster]\nsecret = ''", r"\[cluster\]: no secret may be empty"),
        ("[cluster]\nsecret = 'a'\nsecret_env = 'B'", r"\[cluster\]: give one of secret, secret_env and secret_file"),
        ("data = ':memory:'", r"\[server\] data: .* needs a directory"),
        ("[kafka]\nbootstrap = 'kafka1'", r"\[kafka\] bootstrap is 'kafka1': give HOST:PORT"),
        ("[kafka]\nbootstrap = 'kafka1:1,'", r"\[kafka\] bootstrap is ''"),
        ("[kafka]\nreplication_factor = 0", r"\[kafka\] replication_factor"),
        ("[kafka]\nmin_insync_replicas = 3", r"min_insync_replicas is 3: with replication_factor 3 .* from 1 to 2"),
        ("[kafka]\ncommit_timeout_s = 0", r"\[kafka\] commit_timeout_s"),
        ("[kafka]\nmessage_bytes_max = 1", r"\[kafka\] message_bytes_max"),
        ("[kafka]\ncompression = 'zip'", "zip"),
        ("[kafka.properties]\nacks = '1'", r"\[kafka\] properties has 'acks': Penstock sets that itself"),
        (
            "[kafka.properties_env]\n'sasl.password' = 'PENSTOCK_TEST_NO_SUCH'",
            "PENSTOCK_TEST_NO_SUCH, which is not set",
        ),
        ("[kafka.properties_file]\n'sasl.password' = '/no/such'", "cannot be read from /no/such"),
        ("[kafka.properties]\na = 1\n[kafka.properties_file]\na = '/x'", "'a' is in two of properties"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidSettings, match=complaint):
        kafka_settings(text)


def zookeeper_settings(text: str) -> Settings:
    settings = parse(f"[server]\nengine = 'zookeeper'\n{text}")
    settings.check()
    return settings


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[zookeeper]\nhosts = 'zk1'", r"\[zookeeper\] hosts is 'zk1': give HOST:PORT"),
        ("[zookeeper]\nhosts = 'zk1:2181,'", r"\[zookeeper\] hosts is ''"),
        ("[zookeeper]\nuser = 'a'", "user and password go together"),
        ("[zookeeper]\npassword = 'a'", "user and password go together"),
        ("[zookeeper]\nuser = 'a:b'\npassword = 'c'", "no colon"),
        ("[zookeeper]\nuser = 'a'\npassword = 'b'\npassword_env = 'C'", "give one of password, password_env"),
        ("[zookeeper]\ntls_ca = '/ca.pem'", "need tls = true"),
        ("[zookeeper]\ntls = true\ntls_key = '/a.key'", "tls_certificate and tls_key go together"),
        ("[zookeeper]\nshard_bytes_max = 1", r"\[zookeeper\] shard_bytes_max"),
        ("[cluster]\nname = '..'", r"\[cluster\] name"),
    ],
)
def test_a_cluster_in_zookeeper_that_cannot_be_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidSettings, match=complaint):
        zookeeper_settings(text)


def test_a_password_of_zookeeper_is_fetched_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "hidden")
    settings = zookeeper_settings("[zookeeper]\nuser = 'a'\npassword_env = 'PENSTOCK_TEST_SECRET'")
    options = settings.zookeeper_options()
    assert options.password == "hidden"
    for shown in (settings, settings.zookeeper, options):
        assert "hidden" not in repr(shown) + str(shown)


def test_one_broker_is_enough_for_who_says_so() -> None:
    assert kafka_settings("[kafka]\nreplication_factor = 1\nmin_insync_replicas = 1").kafka_options()


def test_without_kafkas_client_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InvalidSettings, match=r"pip install 'penstock-mq\[kafka\]'"):
        kafka_settings("")
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(InvalidSettings, match=r"pip install 'penstock-mq\[zookeeper\]'"):
        zookeeper_settings("")


def test_without_the_kafka_engine_its_settings_are_not_looked_at() -> None:
    parse("[kafka.properties_env]\n'sasl.password' = 'PENSTOCK_TEST_NO_SUCH'").check()


def test_secrets_of_kafka_and_of_the_cluster_are_fetched_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "hidden")
    (tmp_path / "secret").write_text("hidden\n")
    settings = kafka_settings(
        "[cluster]\nsecret_env = 'PENSTOCK_TEST_SECRET'\nlink_host = '0.0.0.0'\n"
        "[kafka.properties]\n'security.protocol' = 'SASL_SSL'\n'sasl.username' = 'hidden'\n"
        f"[kafka.properties_file]\n'sasl.password' = '{tmp_path / 'secret'}'\n"
        "[kafka.properties_env]\n'ssl.key.password' = 'PENSTOCK_TEST_SECRET'"
    )
    options = settings.kafka_options()
    secret = settings.cluster.open_secret()
    assert secret is not None
    assert secret.reveal() == "hidden"
    assert options.client_properties()["sasl.password"] == options.properties["ssl.key.password"] == "hidden"
    assert options.client_properties()["security.protocol"] == "SASL_SSL"
    for shown in (settings, settings.kafka, settings.cluster, options, secret):
        assert "hidden" not in repr(shown) + str(shown)


# -- credentials -------------------------------------------------------------------------------------------------------


def credentials_of(text: str) -> Credentials:
    return parse(f"[[credentials]]\naccess_key = 'AK'\n{text}").open_credentials()


def test_a_secret_may_stand_in_the_file_in_a_variable_or_in_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "s")
    (tmp_path / "secret").write_text("s\n")
    for text in ("secret_key='s'", "secret_key_env='PENSTOCK_TEST_SECRET'", f"secret_key_file='{tmp_path / 'secret'}'"):
        assert credentials_of(text).check_password("AK", "s") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret_key=''",
        "secret_key='a'\nsecret_key_env='B'",
        "secret_key_env='PENSTOCK_TEST_NO_SUCH'",
        "secret_key_file='/no/such/file'",
        "secret_key_file='no\\u0000path'",
        "secret_key='a'\n[[credentials]]\naccess_key='AK'\nsecret_key='b'",
    ],
)
def test_a_credential_without_a_secret_or_with_two_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="AK"):
        credentials_of(text)


def test_a_key_without_an_allow_list_may_do_everything_and_an_empty_one_nothing() -> None:
    everything = credentials_of("secret_key='s'").check_password("AK", "s")
    nothing = credentials_of("secret_key='s'\nallow=[]").check_password("AK", "s")
    assert everything is not None and nothing is not None
    assert all(everything.allows(right, "any") for right in ("read", "write", "admin"))
    assert not any(nothing.allows(right, "any") for right in ("read", "write", "admin"))


def test_rights_hold_on_the_queues_that_match_and_on_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "s")
    worker = parse(WHOLE).open_credentials().check_password("AKWORKER", "s")
    assert worker is not None
    allowed = {
        (right, queue)
        for right in ("read", "write", "admin")
        for queue in ("orders", "orders-eu", "Orders", "billing", "audit-1", "audit-10")
        if worker.allows(right, queue)  # type: ignore[arg-type]
    }
    assert allowed == {
        ("read", "orders"),
        ("write", "orders"),
        ("read", "orders-eu"),
        ("write", "orders-eu"),
        ("admin", "billing"),
        ("admin", "audit-1"),
    }


@pytest.mark.parametrize(("access_key", "secret"), [("AK", "wrong"), ("AK", ""), ("other", "s"), ("", "")])
def test_only_the_right_pair_stands_for_somebody(access_key: str, secret: str) -> None:
    assert credentials_of("secret_key='s'").check_password(access_key, secret) is None


def test_secrets_show_nowhere() -> None:
    settings = parse("[[credentials]]\naccess_key = 'AK'\nsecret_key = 'hush'")
    credential = settings.open_credentials().by_access_key("AK")
    for shown in (repr(settings), str(settings), repr(credential), repr(Secret("hush")), f"{settings.credentials}"):
        assert "hush" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(Secret("hush"))
