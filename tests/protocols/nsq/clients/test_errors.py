"""Every error that nsqd gives a client, word for word, and whether the connection goes on after it."""

from __future__ import annotations

import struct

import pytest

from tests.protocols.nsq.clients.servers import Broker
from tests.protocols.nsq.clients.wire import ERROR, Connection, Frame, identify, many, pub, sized, sub

MSG_BYTES_MAX = 1024 * 1024
BODY_BYTES_MAX = 5 * 1024 * 1024
COUNT_MAX = (BODY_BYTES_MAX - 4) // 5
UNKNOWN_ID = b"0123456789abcdef"


def size(number: int) -> bytes:
    return struct.pack(">i", number)


@pytest.mark.parametrize("magic", [b"  V1", b"GET ", b"\0\0\0\0"])
def test_an_unknown_magic_is_refused_and_the_connection_closed(server: Broker, magic: bytes) -> None:
    with Connection(server.address, magic) as connection:
        assert connection.frame() == Frame(ERROR, b"E_BAD_PROTOCOL")
        assert connection.is_closed()


BEFORE_SUB = {
    b"\n": "E_INVALID invalid command ",
    b"HELLO\n": "E_INVALID invalid command HELLO",
    b"nop\n": "E_INVALID invalid command nop",
    b" NOP\n": "E_INVALID invalid command ",
    b"RDY 1\n": "E_INVALID cannot RDY in current state",
    b"FIN " + UNKNOWN_ID + b"\n": "E_INVALID cannot FIN in current state",
    b"REQ " + UNKNOWN_ID + b" 0\n": "E_INVALID cannot REQ in current state",
    b"TOUCH " + UNKNOWN_ID + b"\n": "E_INVALID cannot TOUCH in current state",
    b"CLS\n": "E_INVALID cannot CLS in current state",
    # SUB
    b"SUB\n": "E_INVALID SUB insufficient number of parameters",
    b"SUB topic\n": "E_INVALID SUB insufficient number of parameters",
    b"SUB bad!topic ch\n": 'E_BAD_TOPIC SUB topic name "bad!topic" is not valid',
    b"SUB  ch\n": 'E_BAD_TOPIC SUB topic name "" is not valid',
    b"SUB topic bad!channel\n": 'E_BAD_CHANNEL SUB channel name "bad!channel" is not valid',
    b"SUB topic \n": 'E_BAD_CHANNEL SUB channel name "" is not valid',
    # PUB
    b"PUB\n": "E_INVALID PUB insufficient number of parameters",
    b"PUB bad!topic\n": 'E_BAD_TOPIC PUB topic name "bad!topic" is not valid',
    b"PUB  topic\n": 'E_BAD_TOPIC PUB topic name "" is not valid',
    b"PUB topic\n" + size(0): "E_BAD_MESSAGE PUB invalid message body size 0",
    b"PUB topic\n" + size(-1): "E_BAD_MESSAGE PUB invalid message body size -1",
    b"PUB topic\n" + size(MSG_BYTES_MAX + 1): "E_BAD_MESSAGE PUB message too big 1048577 > 1048576",
    b"PUB topic\n" + b"\x7f\xff\xff\xff": "E_BAD_MESSAGE PUB message too big 2147483647 > 1048576",
    b"PUB topic\n" + b"\xff\xff\xff\xff": "E_BAD_MESSAGE PUB invalid message body size -1",
    # DPUB
    b"DPUB topic\n": "E_INVALID DPUB insufficient number of parameters",
    b"DPUB bad!topic 1\n": 'E_BAD_TOPIC DPUB topic name "bad!topic" is not valid',
    b"DPUB topic soon\n": "E_INVALID DPUB could not parse timeout soon",
    b"DPUB topic -1\n": "E_INVALID DPUB could not parse timeout -1",
    b"DPUB topic 3600001\n": "E_INVALID DPUB timeout 3600001 out of range 0-3600000",
    b"DPUB topic 1\n" + size(0): "E_BAD_MESSAGE DPUB invalid message body size 0",
    b"DPUB topic 1\n" + size(MSG_BYTES_MAX + 1): "E_BAD_MESSAGE DPUB message too big 1048577 > 1048576",
    # MPUB
    b"MPUB\n": "E_INVALID MPUB insufficient number of parameters",
    b"MPUB bad!topic\n": 'E_BAD_TOPIC MPUB topic name "bad!topic" is not valid',
    b"MPUB topic\n" + size(0): "E_BAD_BODY MPUB invalid body size 0",
    b"MPUB topic\n" + size(-5): "E_BAD_BODY MPUB invalid body size -5",
    b"MPUB topic\n" + size(BODY_BYTES_MAX + 1): "E_BAD_BODY MPUB body too big 5242881 > 5242880",
    b"MPUB topic\n" + sized(size(0)): "E_BAD_BODY MPUB invalid message count 0",
    b"MPUB topic\n" + sized(size(-1)): "E_BAD_BODY MPUB invalid message count -1",
    b"MPUB topic\n" + sized(size(COUNT_MAX + 1)): f"E_BAD_BODY MPUB invalid message count {COUNT_MAX + 1}",
    b"MPUB topic\n" + sized(many([b"a", b"", b"c"])): "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    b"MPUB topic\n" + sized(size(1) + size(-7) + b"x"): "E_BAD_MESSAGE MPUB invalid message(0) body size -7",
    # AUTH
    b"AUTH secret\n": "E_INVALID AUTH invalid number of parameters",
    b"AUTH\n" + size(0): "E_BAD_BODY AUTH invalid body size 0",
    b"AUTH\n" + size(BODY_BYTES_MAX + 1): "E_BAD_BODY AUTH body too big 5242881 > 5242880",
    b"AUTH\n" + sized(b"secret"): "E_AUTH_DISABLED AUTH disabled",
    # IDENTIFY
    b"IDENTIFY\n" + size(0): "E_BAD_BODY IDENTIFY invalid body size 0",
    b"IDENTIFY\n" + size(-1): "E_BAD_BODY IDENTIFY invalid body size -1",
    b"IDENTIFY\n" + size(BODY_BYTES_MAX + 1): "E_BAD_BODY IDENTIFY body too big 5242881 > 5242880",
    b"IDENTIFY\n" + sized(b"{"): "E_BAD_BODY IDENTIFY failed to decode JSON body",
    b"IDENTIFY\n" + sized(b"[]"): "E_BAD_BODY IDENTIFY failed to decode JSON body",
    b"IDENTIFY\n" + sized(b'"x"'): "E_BAD_BODY IDENTIFY failed to decode JSON body",
    identify(heartbeat_interval="often"): "E_BAD_BODY IDENTIFY failed to decode JSON body",
    identify(heartbeat_interval=999): "E_BAD_BODY IDENTIFY heartbeat interval (999) is invalid",
    identify(heartbeat_interval=60001): "E_BAD_BODY IDENTIFY heartbeat interval (60001) is invalid",
    identify(heartbeat_interval=-2): "E_BAD_BODY IDENTIFY heartbeat interval (-2) is invalid",
    identify(output_buffer_size=63): "E_BAD_BODY IDENTIFY output buffer size (63) is invalid",
    identify(output_buffer_size=65537): "E_BAD_BODY IDENTIFY output buffer size (65537) is invalid",
    identify(output_buffer_timeout=24): "E_BAD_BODY IDENTIFY output buffer timeout (24) is invalid",
    identify(output_buffer_timeout=30001): "E_BAD_BODY IDENTIFY output buffer timeout (30001) is invalid",
    identify(sample_rate=-1): "E_BAD_BODY IDENTIFY sample rate (-1) is invalid",
    identify(sample_rate=100): "E_BAD_BODY IDENTIFY sample rate (100) is invalid",
    identify(msg_timeout=999): "E_BAD_BODY IDENTIFY msg timeout (999) is invalid",
    identify(msg_timeout=900001): "E_BAD_BODY IDENTIFY msg timeout (900001) is invalid",
    identify(feature_negotiation=True, deflate=True, snappy=True): (
        "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    ),
}


@pytest.mark.parametrize("command", BEFORE_SUB, ids=lambda command: repr(command[:60]))
def test_an_error_that_closes_the_connection(server: Broker, command: bytes) -> None:
    with server.connect() as connection:
        connection.send(command)
        error = connection.error()
        assert (
            error.replace("E_BAD_TOPIC E_BAD_TOPIC", "E_BAD_TOPIC") == BEFORE_SUB[command]
        )  # nsqd says it twice of MPUB
        assert connection.is_closed()


def test_a_message_of_an_mpub_that_is_too_big(server: Broker, topic: str) -> None:
    """nsqd says so when it sees the size, Penstock when it has the whole body."""
    head = struct.pack(">iii", MSG_BYTES_MAX + 9, 1, MSG_BYTES_MAX + 1)
    with server.connect() as connection:
        connection.send(f"MPUB {topic}\n".encode(), head)
        if not server.is_nsqd:
            connection.send(b"x" * (MSG_BYTES_MAX + 1))
        assert connection.error() == "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576"
        assert connection.is_closed()


AFTER_SUB = {
    b"SUB other ch\n": "E_INVALID cannot SUB in current state",
    identify(): "E_INVALID cannot IDENTIFY in current state",
    b"AUTH\n" + sized(b"secret"): "E_INVALID cannot AUTH in current state",
    b"RDY -1\n": "E_INVALID RDY could not parse count -1",
    b"RDY many\n": "E_INVALID RDY could not parse count many",
    b"RDY \n": None,
    b"RDY 2501\n": "E_INVALID RDY count 2501 out of range 0-2500",
    b"FIN\n": "E_INVALID FIN insufficient number of params",
    b"FIN short\n": "E_INVALID invalid message ID",
    b"FIN " + UNKNOWN_ID + b"0\n": "E_INVALID invalid message ID",
    b"REQ " + UNKNOWN_ID + b"\n": "E_INVALID REQ insufficient number of params",
    b"REQ short 0\n": "E_INVALID invalid message ID",
    b"REQ " + UNKNOWN_ID + b" soon\n": "E_INVALID REQ could not parse timeout soon",
    b"REQ " + UNKNOWN_ID + b" -1\n": "E_INVALID REQ could not parse timeout -1",
    b"TOUCH\n": "E_INVALID TOUCH insufficient number of params",
    b"TOUCH short\n": "E_INVALID invalid message ID",
    b"WHAT\n": "E_INVALID invalid command WHAT",
}


@pytest.mark.parametrize("command", AFTER_SUB, ids=lambda command: repr(command[:60]))
def test_an_error_that_closes_a_subscriber_s_connection(server: Broker, topic: str, command: bytes) -> None:
    with server.subscriber(topic) as connection:
        connection.send(command)
        expected = AFTER_SUB[command]
        if expected is None:  # no number at all is zero
            assert connection.is_open()
        else:
            assert connection.error() == expected
            assert connection.is_closed()


FORGIVEN = {
    b"FIN " + UNKNOWN_ID + b"\n": "E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight",
    b"FIN zzzzzzzzzzzzzzzz\n": "E_FIN_FAILED FIN zzzzzzzzzzzzzzzz failed ID not in flight",
    b"FIN ffffffffffffffff\n": "E_FIN_FAILED FIN ffffffffffffffff failed ID not in flight",
    b"REQ " + UNKNOWN_ID + b" 0\n": "E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight",
    b"REQ " + UNKNOWN_ID + b" 99999999\n": "E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight",
    b"TOUCH " + UNKNOWN_ID + b"\n": "E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight",
}


@pytest.mark.parametrize("command", FORGIVEN, ids=lambda command: repr(command[:60]))
def test_an_error_that_leaves_the_connection_open(server: Broker, topic: str, command: bytes) -> None:
    with server.subscriber(topic) as connection:
        for _ in range(2):
            connection.send(command)
            assert connection.error() == FORGIVEN[command]
        assert connection.is_open()


@pytest.mark.parametrize("verb", [b"FIN %s\n", b"REQ %s 0\n", b"TOUCH %s\n"])
def test_what_another_client_holds_cannot_be_settled(server: Broker, topic: str, verb: bytes) -> None:
    server.publish(topic, b"mine")
    with server.subscriber(topic, ready=1) as holder, server.subscriber(topic) as other:
        message = holder.message()
        other.send(verb % message.id)
        name = verb.split()[0].decode()
        expected = f"E_{name}_FAILED {name} {message.id.decode()} failed "
        reasons = (
            ["client does not own message"] if server.is_nsqd else ["client does not own message", "ID not in flight"]
        )
        assert other.error() in [expected + reason for reason in reasons]
        assert other.is_open()
        holder.send(b"FIN %s\n" % message.id)
        assert holder.is_open()


def test_a_message_can_be_finished_once(server: Broker, topic: str) -> None:
    server.publish(topic, b"once")
    with server.subscriber(topic, ready=1) as connection:
        message = connection.message()
        connection.send(b"FIN %s\n" % message.id * 2)
        assert connection.error() == f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight"
        assert connection.is_open()


def test_a_subscription_needs_heartbeats(server: Broker, topic: str) -> None:
    with server.connect(heartbeat_interval=-1) as connection:
        connection.send(sub(topic, "ch"))
        assert connection.error() == "E_INVALID cannot SUB with heartbeats disabled"
        assert connection.is_closed()


def test_a_line_without_an_end_closes_the_connection(server: Broker) -> None:
    with server.connect() as connection:
        connection.send(b"X" * (1 << 17))
        try:
            assert connection.is_closed()
        except AssertionError as error:
            assert "closed in the middle" not in str(error)


def test_what_came_before_an_error_counts_and_what_comes_after_does_not(server: Broker, topic: str) -> None:
    with server.connect() as connection:
        connection.send(pub(topic, b"before"), b"WHAT\n", pub(topic, b"after"))
        assert connection.response() == b"OK"
        assert connection.error() == "E_INVALID invalid command WHAT"
        assert connection.is_closed()
    with server.subscriber(topic, ready=10) as reader:
        assert reader.message().body == b"before"
        assert reader.is_silent()


def test_a_faulty_mpub_publishes_nothing(server: Broker, topic: str) -> None:
    with server.connect() as connection:
        connection.send(f"MPUB {topic}\n".encode() + sized(many([b"a", b"b", b""])))
        assert connection.error() == "E_BAD_MESSAGE MPUB invalid message(2) body size 0"
    with server.subscriber(topic, ready=10) as reader:
        assert reader.is_silent()


def test_half_a_command_publishes_nothing(server: Broker, topic: str) -> None:
    server.publish(topic, b"whole")
    for end in range(1, len(pub(topic, b"half"))):
        with server.connect() as connection:
            connection.send(pub(topic, b"half")[:end])
    with server.subscriber(topic, ready=10) as reader:
        assert reader.message().body == b"whole"
        assert reader.is_silent()
