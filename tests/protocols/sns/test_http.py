"""HTTP(S) endpoints: the handshake, signatures, retries, dead letters, throttling, and whom the server may call."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from penstock.protocols.sns import http_delivery
from penstock.protocols.sns.http_delivery import Failed, HttpPoster, HttpTargets, NotAllowed
from penstock.protocols.sns.policies import RETRY_DEFAULTS, RetryPolicy
from penstock.protocols.sns.signing import make_signer
from penstock.server.settings import SnsSettings
from tests.compat.server import Server, serving
from tests.protocols.sns.conftest import sns_client
from tests.protocols.sns.endpoint import endpoint, fetched, subscribed
from tests.protocols.sns.test_sns import ARN, error_of, received

CREDENTIALS = '[[credentials]]\naccess_key = "ADMIN"\nsecret_key = "admin-secret-1234567890"\n'
BOTH = {"minDelayTarget": 1, "maxDelayTarget": 1}
QUICK = json.dumps({"healthyRetryPolicy": {**BOTH, "numRetries": 3, "numNoDelayRetries": 3}})


def test_an_endpoint_confirms_its_subscription_and_gets_signed_notifications(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    with endpoint() as there:
        answer = sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=there.url)
        assert answer["SubscriptionArn"] == "pending confirmation"
        (listed,) = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        assert listed["SubscriptionArn"] == "PendingConfirmation"
        sns.publish(TopicArn=topic, Message="too early")
        (asked,) = there.wait(1)
        message = asked.message
        assert message["Type"] == "SubscriptionConfirmation"
        assert message["TopicArn"] == asked.headers["x-amz-sns-topic-arn"] == topic
        assert message["MessageId"] == asked.headers["x-amz-sns-message-id"]
        assert asked.headers["x-amz-sns-message-type"] == "SubscriptionConfirmation"
        assert asked.headers["user-agent"] == "Amazon Simple Notification Service Agent"
        assert asked.headers["content-type"] == "text/plain; charset=UTF-8"
        assert message["Message"].startswith(f"You have chosen to subscribe to the topic {topic}.\nTo confirm")
        attributes = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
        assert (attributes["SubscriptionsPending"], attributes["SubscriptionsConfirmed"]) == ("1", "0")

        arn = sns.confirm_subscription(TopicArn=topic, Token=message["Token"])["SubscriptionArn"]
        assert sns.confirm_subscription(TopicArn=topic, Token=message["Token"])["SubscriptionArn"] == arn
        shown = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
        assert (shown["PendingConfirmation"], shown["ConfirmationWasAuthenticated"]) == ("false", "false")
        effective = json.loads(shown["EffectiveDeliveryPolicy"])
        assert effective["healthyRetryPolicy"] == RETRY_DEFAULTS
        assert (effective["sicklyRetryPolicy"], effective["throttlePolicy"]) == (None, None)
        kind = {"kind": {"DataType": "String", "StringValue": "order"}}
        published = sns.publish(TopicArn=topic, Message="héllo", Subject="news", MessageAttributes=kind)
        _, came = there.wait(2)
        message = came.message
        assert came.headers["x-amz-sns-message-type"] == message["Type"] == "Notification"
        assert came.headers["x-amz-sns-subscription-arn"] == arn
        assert (message["MessageId"], message["SignatureVersion"]) == (published["MessageId"], "1")
        assert (message["Message"], message["Subject"]) == ("héllo", "news")
        assert message["MessageAttributes"] == {"kind": {"Type": "String", "Value": "order"}}

        sns.set_topic_attributes(TopicArn=topic, AttributeName="SignatureVersion", AttributeValue="2")
        sns.publish(TopicArn=topic, Message="again")
        assert there.wait(3)[2].message["SignatureVersion"] == "2"


def test_an_endpoint_that_is_unsubscribed_is_told_and_may_come_back(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    with endpoint() as there:
        arn = subscribed(sns, topic, there)
        sns.publish(TopicArn=topic, Message="x")
        (came,) = there.wait(1)
        fetched(came.message["UnsubscribeURL"])
        _, told = there.wait(2)
        assert told.headers["x-amz-sns-message-type"] == told.message["Type"] == "UnsubscribeConfirmation"
        assert told.message["Message"].startswith(f"You have chosen to deactivate subscription {arn}.\nTo cancel")
        assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []
        assert sns.get_topic_attributes(TopicArn=topic)["Attributes"]["SubscriptionsDeleted"] == "1"
        assert arn in fetched(told.message["SubscribeURL"]).decode()
        sns.publish(TopicArn=topic, Message="back")
        assert there.wait(3)[2].message["Message"] == "back"


def test_a_token_is_good_for_its_own_topic_only(sns: Any, name: str) -> None:
    topics = [sns.create_topic(Name=f"{name}-{each}")["TopicArn"] for each in "ab"]
    with endpoint() as there:
        sns.subscribe(TopicArn=topics[0], Protocol="http", Endpoint=there.url)
        token = there.wait(1)[0].message["Token"]
        assert error_of(sns.confirm_subscription, TopicArn=topics[1], Token=token)[1] == "Invalid parameter: Topic"
        forged = token[:-2] + ("00" if token[-2:] != "00" else "01")
        assert error_of(sns.confirm_subscription, TopicArn=topics[0], Token=forged)[0] == "InvalidParameter"
        sns.delete_topic(TopicArn=topics[0])
        sns.create_topic(Name=f"{name}-a")
        assert error_of(sns.confirm_subscription, TopicArn=topics[0], Token=token)[1] == "Invalid parameter: Topic"
        # asked once more, it is told once more
        sns.subscribe(TopicArn=topics[1], Protocol="http", Endpoint=there.url)
        sns.subscribe(TopicArn=topics[1], Protocol="http", Endpoint=there.url)
        assert len(there.wait(3)) == 3
        assert len(sns.list_subscriptions_by_topic(TopicArn=topics[1])["Subscriptions"]) == 1


def test_an_endpoint_gets_raw_messages_if_it_wants_them(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    policy = json.dumps({"requestPolicy": {"headerContentType": "application/json"}})
    with endpoint() as there:
        subscribed(sns, topic, there, RawMessageDelivery="true", DeliveryPolicy=policy)
        text = json.dumps({"default": "no", "http": '{"a": 1}'})
        sns.publish(TopicArn=topic, Message=text, MessageStructure="json")
        (came,) = there.wait(1)
        assert came.body == b'{"a": 1}'
        assert came.headers["x-amz-sns-rawdelivery"] == "true"
        assert came.headers["content-type"] == "application/json"


def test_a_message_is_tried_again_by_the_policy_and_then_goes_to_the_dead_letter_queue(
    sns: Any, sqs: Any, name: str
) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    redrive = json.dumps({"deadLetterTargetArn": f"{ARN}{name}-dead"})
    with endpoint() as there:
        arn = subscribed(sns, topic, there, DeliveryPolicy=QUICK, RedrivePolicy=redrive)
        there.statuses = [500, 429, 503]
        sns.publish(TopicArn=topic, Message="at last")
        assert [each.message["Message"] for each in there.wait(4)] == ["at last"] * 4
        there.posted.clear()
        there.statuses = [500] * 4
        published = sns.publish(TopicArn=topic, Message="never")
        (buried,) = received(sqs, dead, 1)
        assert json.loads(buried["Body"])["MessageId"] == published["MessageId"]
        assert buried["MessageAttributes"]["ErrorMessage"]["StringValue"] == "the endpoint answered 500"
        assert set(buried["MessageAttributes"]) == {"ErrorMessage", "ErrorCode", "RequestID"}
        assert len(there.posted) == 4
        # what the endpoint says is its client's fault is not tried again; a redirect is not followed
        with endpoint() as elsewhere:
            there.posted.clear()
            there.statuses, there.location = [404, 302], elsewhere.url
            sns.publish(TopicArn=topic, Message="a")
            sns.publish(TopicArn=topic, Message="b")
            reasons = {each["MessageAttributes"]["ErrorMessage"]["StringValue"] for each in received(sqs, dead, 2)}
            assert reasons == {"the endpoint answered 404", "the endpoint answered 302"}
            assert (len(there.posted), elsewhere.posted) == (2, [])
        there.location = ""
        sns.set_subscription_attributes(
            SubscriptionArn=arn,
            AttributeName="DeliveryPolicy",
            AttributeValue=json.dumps({"healthyRetryPolicy": {**BOTH, "numRetries": 1}}),
        )
        there.posted.clear()
        there.statuses = [500]
        sns.publish(TopicArn=topic, Message="later")
        first, second = there.wait(2)
        assert 0.9 <= second.at_s - first.at_s < 10


def test_a_throttled_endpoint_gets_no_more_a_second_than_it_said(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    policy = json.dumps({"throttlePolicy": {"maxReceivesPerSecond": 10}})
    with endpoint() as there:
        subscribed(sns, topic, there, DeliveryPolicy=policy, RawMessageDelivery="true")
        entries = [{"Id": str(number), "Message": str(number)} for number in range(10)]
        sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
        sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries[:5])
        came = there.wait(15)
        assert len(came) == 15
        assert came[-1].at_s - came[0].at_s >= 1.3


def test_the_server_calls_nobody_that_it_may_not(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    for url in (
        "http://192.0.2.1/",
        "http://169.254.169.254/latest",
        "http://[2001:db8::1]/",
        "http://[::ffff:192.0.2.1]/",
    ):
        code, message = error_of(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=url)
        assert (code, message.endswith("is not in [sns] http_targets")) == ("InvalidParameter", True)
    for url in ("https://localhost/", "http://me:pw@localhost/", "http://", "localhost", "http://localhost/ a"):
        assert error_of(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=url) == (
            "InvalidParameter",
            "Invalid parameter: Endpoint must match the specified protocol",
        )


def test_the_server_never_calls_itself(server: Server, sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    for host in ("127.0.0.1", "localhost", "127.0.0.2", "[::ffff:127.0.0.1]"):
        for port in (server.port, server.http_port):
            url = f"http://{host}:{port}/?Action=Publish&TopicArn={topic}&Message=x"
            code, message = error_of(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=url)
            assert (code, message.endswith(f":{port} is this server itself")) == ("InvalidParameter", True)
    # an address of the machine that is no loopback address shows when the connection is there
    targets = HttpTargets(["*"], own_ports=lambda: {4151})
    targets.check_peer("10.0.0.5", "10.0.0.6", 4151)
    with pytest.raises(NotAllowed):
        targets.check_peer("10.0.0.5", "10.0.0.5", 4151)


@pytest.mark.parametrize(
    ("flags", "config"), [((), CREDENTIALS), (("--host", "0.0.0.0", "--insecure"), "")], ids=["credentials", "open"]
)
def test_who_is_not_known_to_be_on_the_machine_cannot_have_its_ports_called(
    tmp_path: Path, flags: tuple[str, ...], config: str
) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(config)
    path.chmod(0o600)
    with serving(tmp_path, "--config", str(path), *flags) as server, endpoint() as there:
        sns = sns_client(server, "ADMIN", "admin-secret-1234567890")
        topic = sns.create_topic(Name="news")["TopicArn"]
        assert error_of(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=there.url) == (
            "InvalidParameter",
            "Invalid parameter: Unreachable endpoint Reason: localhost is not in [sns] http_targets",
        )


def test_an_https_endpoint_is_reached_if_its_certificate_is_trusted(tmp_path: Path) -> None:
    from tests.protocols.sns.certificates import make_certificate

    certificate, key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    config = tmp_path / "penstock.toml"
    config.write_text(f'[sns]\nhttp_ca = "{certificate}"\n')
    with serving(tmp_path, "--config", str(config)) as server, endpoint(tls) as there:
        sns = sns_client(server)
        topic = sns.create_topic(Name="news")["TopicArn"]
        subscribed(sns, topic, there)
        sns.publish(TopicArn=topic, Message="x")
        (came,) = there.wait(1)
        assert came.message["Message"] == "x"


def test_with_credentials_a_link_needs_no_signature_and_gives_no_other_right(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(CREDENTIALS + '[sns]\nhttp_targets = ["localhost"]\n')
    config.chmod(0o600)
    with serving(tmp_path, "--config", str(config)) as server, endpoint() as there:
        sns, sqs = (sns_client(server, "ADMIN", "admin-secret-1234567890", each) for each in ("sns", "sqs"))
        topic = sns.create_topic(Name="news")["TopicArn"]
        sqs.create_queue(QueueName="q")
        of_queue = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + "q")["SubscriptionArn"]
        arn = subscribed(sns, topic, there)
        sns.publish(TopicArn=topic, Message="x")
        (came,) = there.wait(1)
        for refused in (of_queue, f"{topic}:nobody"):
            with pytest.raises(urllib.error.HTTPError) as error:
                fetched(came.message["UnsubscribeURL"].replace(arn, refused))
            assert error.value.code == 403
        with pytest.raises(urllib.error.HTTPError):
            fetched(f"{server.url}/?Action=ListTopics&Version=2010-03-31")
        fetched(came.message["UnsubscribeURL"])
        assert len(sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]) == 1
        # who wants its endpoint to need a signature says so when it confirms
        there.posted.clear()
        sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=there.url)
        token = there.wait(2)[-1].message["Token"]
        arn = sns.confirm_subscription(TopicArn=topic, Token=token, AuthenticateOnUnsubscribe="true")["SubscriptionArn"]
        shown = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
        assert shown["ConfirmationWasAuthenticated"] == "true"
        with pytest.raises(urllib.error.HTTPError):
            fetched(f"{server.url}/?Action=Unsubscribe&SubscriptionArn={arn}")


def test_a_restart_goes_on_with_retries_and_with_the_same_certificate(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text("[sns]\nhttp_timeout_s = 1\n")
    with serving(tmp_path, "--config", str(config)) as server, endpoint() as there:
        sns = sns_client(server)
        topic = sns.create_topic(Name="news")["TopicArn"]
        policy = json.dumps({"healthyRetryPolicy": {**BOTH, "numRetries": 50}})
        subscribed(sns, topic, there, DeliveryPolicy=policy)
        there.statuses = [500] * 1_000
        sns.publish(TopicArn=topic, Message="x")
        (first, *_) = there.wait(1)
        server.kill()
        there.statuses = []
        there.posted.clear()
        server.start()
        (second, *_) = there.wait(1)
        assert second.message["Message"] == "x"
        assert first.message["SigningCertURL"].split("/")[-1] == second.message["SigningCertURL"].split("/")[-1]


def test_a_certificate_that_is_not_ours_is_not_found(server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        fetched(f"{server.url}/SimpleNotificationService-0.pem")
    assert error.value.code == 404


def test_the_key_of_a_store_is_always_the_same() -> None:
    made = [make_signer(secret) for secret in (b"a" * 32, b"a" * 32, b"b" * 32)]
    certificates = [each.certificate for each in made if each is not None]
    assert len(certificates) == 3
    assert certificates[0] == certificates[1] != certificates[2]


@pytest.mark.parametrize("function", ["linear", "arithmetic", "geometric", "exponential"])
def test_waits_grow_from_the_least_to_the_most(function: str) -> None:
    given = {"minDelayTarget": 2, "maxDelayTarget": 50, "numRetries": 12, "numNoDelayRetries": 2}
    policy = RetryPolicy(RETRY_DEFAULTS | given | {"numMaxDelayRetries": 3, "backoffFunction": function})
    waits = [policy.wait_s(attempt) for attempt in range(1, 14)]
    assert waits[:3] == [0, 0, 2]
    assert waits[8:] == [50, 50, 50, 50, None]
    assert waits[:-1] == sorted(waits[:-1], key=lambda wait: wait or 0)


def retries(**members: Any) -> str:
    return json.dumps({"healthyRetryPolicy": {**BOTH, "numRetries": 1} | members})


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("x", "failed to parse JSON."),
        ('{"other": 1}', "Unexpected JSON member: other"),
        (retries(numRetries=101), "healthyRetryPolicy.numRetries must be less than or equal to 100"),
        (retries(numRetries=-1), "healthyRetryPolicy.numRetries must be greater than or equal to 0"),
        (retries(numRetries="3"), "healthyRetryPolicy.numRetries must be an integer"),
        (retries(minDelayTarget=0), "healthyRetryPolicy.minDelayTarget must be greater than or equal to 1"),
        (retries(minDelayTarget=9), "maxDelayTarget must be greater than or equal to minDelayTarget"),
        (retries(numNoDelayRetries=5), "numRetries must be as many as those of all phases"),
        (retries(backoffFunction="odd"), "healthyRetryPolicy.backoffFunction must be one of linear,"),
        (retries(backoffFunction=[]), "healthyRetryPolicy.backoffFunction must be one of linear,"),
        ('{"healthyRetryPolicy": {"numRetries": 101}}', "healthyRetryPolicy.minDelayTarget must be specified"),
        ('{"healthyRetryPolicy": 5}', "healthyRetryPolicy must be an object"),
        (
            '{"throttlePolicy": {"maxReceivesPerSecond": 0}}',
            "throttlePolicy.maxReceivesPerSecond must be greater than or equal to 1",
        ),
        ('{"requestPolicy": {"headerContentType": "x/y"}}', "headerContentType: x/y is not supported"),
    ],
)
def test_a_delivery_policy_that_is_not_valid_is_refused(sns: Any, name: str, policy: str, reason: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    attributes = {"DeliveryPolicy": policy}
    arguments = {"TopicArn": topic, "Protocol": "http", "Endpoint": "http://127.0.0.1:1/", "Attributes": attributes}
    code, message = error_of(sns.subscribe, **arguments)
    assert (code, reason in message) == ("InvalidParameter", True)


def test_the_effective_policy_of_a_subscription_is_its_own_over_the_topics(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    of_topic = {"defaultHealthyRetryPolicy": {"numRetries": 7, "minDelayTarget": 30, "maxDelayTarget": 30}}
    sns.set_topic_attributes(
        TopicArn=topic, AttributeName="DeliveryPolicy", AttributeValue=json.dumps({"http": of_topic})
    )
    effective = json.loads(sns.get_topic_attributes(TopicArn=topic)["Attributes"]["EffectiveDeliveryPolicy"])["http"]
    assert effective["defaultHealthyRetryPolicy"] == RETRY_DEFAULTS | {
        "numRetries": 7,
        "minDelayTarget": 30,
        "maxDelayTarget": 30,
    }
    own = json.dumps({"healthyRetryPolicy": {**BOTH, "numRetries": 5}, "throttlePolicy": {"maxReceivesPerSecond": 3}})
    arn = sns.subscribe(
        TopicArn=topic,
        Protocol="http",
        Endpoint="http://127.0.0.1:1/",
        Attributes={"DeliveryPolicy": own},
        ReturnSubscriptionArn=True,
    )["SubscriptionArn"]
    shown = json.loads(sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["EffectiveDeliveryPolicy"])
    assert (shown["healthyRetryPolicy"]["numRetries"], shown["healthyRetryPolicy"]["minDelayTarget"]) == (5, 1)
    assert shown["throttlePolicy"] == {"maxReceivesPerSecond": 3}
    of_topic["disableSubscriptionOverrides"] = True  # type: ignore[assignment]
    sns.set_topic_attributes(
        TopicArn=topic, AttributeName="DeliveryPolicy", AttributeValue=json.dumps({"http": of_topic})
    )
    shown = json.loads(sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["EffectiveDeliveryPolicy"])
    assert (shown["healthyRetryPolicy"]["numRetries"], shown["throttlePolicy"]) == (7, None)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 9_000 + b"\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
    ],
)
def test_an_answer_that_is_no_http_is_a_failed_delivery(answer: bytes) -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def post() -> None:
        async with await asyncio.start_server(answered, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(Failed):
                await HttpPoster(SnsSettings(), HttpTargets([], loopback=True)).post(
                    f"http://127.0.0.1:{port}/", {}, b"x"
                )

    asyncio.run(post())


def test_connections_that_nobody_uses_any_more_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_delivery, "_IDLE_S_MAX", 0.1)
    gone = 0

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal gone
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        gone += 1
        writer.close()

    async def post() -> None:
        async with await asyncio.start_server(answered, "127.0.0.1", 0) as server:
            poster = HttpPoster(SnsSettings(), HttpTargets([], loopback=True))
            for number in range(5):
                await poster.post(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/{number}", {}, b"")
            async with asyncio.timeout(3):
                while gone < 5:
                    await asyncio.sleep(0.02)
            assert poster._idle == {}

    asyncio.run(post())


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example.org"])
def test_a_host_that_can_be_no_name_is_refused(sns: Any, name: str, host: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    code, _ = error_of(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=f"http://{host}/")
    assert code == "InvalidParameter"


def test_a_body_that_is_nested_deeply_does_not_stop_a_subscription(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    queue = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = {"FilterPolicy": '{"a": ["x"]}', "FilterPolicyScope": "MessageBody", "RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=policy)
    sns.publish(TopicArn=topic, Message='{"a": ' + "[" * 800 + "]" * 800 + "}")
    sns.publish(TopicArn=topic, Message='{"a": "x"}')
    found = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert [each["Body"] for each in found] == ['{"a": "x"}']


def test_who_subscribes_again_and_again_has_one_confirmation_on_its_way(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(5)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        came: list[socket.socket] = []
        for _ in range(4):
            sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=url)
            came.append(silent.accept()[0])
        is_open = []
        for each in came:
            each.settimeout(0.5)
            try:
                while each.recv(65_536):
                    pass
                is_open.append(False)
            except TimeoutError:
                is_open.append(True)
            each.close()
        assert is_open == [False, False, False, True]
