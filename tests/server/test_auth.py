"""Bearer tokens: whose they are, and where they come from."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from penstock.core.commands import ChangeQueue, CreateQueue
from penstock.core.errors import AccessDenied, TooManyFailedLogins
from penstock.core.queues.config import QueueConfig
from penstock.protocols.sqs.attributes import LABEL as SQS_LABEL
from penstock.server.auth import Credentials, FailedLogins, Grant, Principal, authorize
from penstock.server.settings import InvalidSettings, parse
from penstock.transfer.contents import LABEL


def credentials_of(text: str) -> Credentials:
    return parse(text).open_credentials()


TWO = """
[[credentials]]
name = "shop"
access_key = "AKSHOP"
secret_key = "shop:secret"
token = "shop-token"

[[credentials]]
name = "office"
access_key = "AKOFFICE"
token = "AKSHOP:looks-like-a-pair"
"""


@pytest.mark.parametrize(
    ("token", "name"),
    [
        ("shop-token", "shop"),
        ("AKSHOP:shop:secret", "shop"),
        ("AKSHOP:looks-like-a-pair", "office"),
        ("AKSHOP:secret", None),
        ("AKSHOP", None),
        ("AKSHOP:", None),
        ("AKOFFICE:", None),
        ("shop-token ", None),
        ("", None),
        ("\udcff", None),
        ("nobody:there is no such access key", None),
    ],
)
def test_a_bearer_token_stands_for_the_credential_that_has_it(token: str, name: str | None) -> None:
    principal = credentials_of(TWO).check_bearer(token)
    assert (None if principal is None else principal.name) == name


def test_tokens_come_from_the_environment_and_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from a file\n")
    monkeypatch.setenv("PENSTOCK_TEST_TOKEN", "from the environment")
    known = credentials_of(
        f"[[credentials]]\naccess_key='A'\ntoken_file='{tmp_path / 'token'}'\n"
        "[[credentials]]\naccess_key='B'\ntoken_env='PENSTOCK_TEST_TOKEN'\n"
    )
    assert [known.check_bearer(token) for token in ("from a file", "from the environment")] == [
        known.by_access_key("A").principal,  # type: ignore[union-attr]
        known.by_access_key("B").principal,  # type: ignore[union-attr]
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("access_key='A'", "or a token"),
        ("access_key='A'\ntoken=''", "the token may be empty"),
        ("access_key='A'\ntoken='t'\ntoken_env='T'", "give one of token, token_env and token_file"),
        ("access_key='A'\ntoken_env='PENSTOCK_NO_SUCH_VARIABLE'", "the token may be empty"),
        ("access_key='A'\ntoken='t'\n[[credentials]]\naccess_key='B'\ntoken='t'", "another credential's token"),
    ],
)
def test_tokens_that_cannot_be_used_are_refused_at_start(text: str, complaint: str) -> None:
    with pytest.raises(InvalidSettings, match=complaint):
        credentials_of(f"[[credentials]]\n{text}")


def test_tokens_show_in_no_representation() -> None:
    settings = parse(TWO)
    known = settings.open_credentials().by_access_key("AKSHOP")
    assert "shop-token" not in repr(settings) + repr(known)


def test_names_that_no_queue_can_have_are_not_remembered() -> None:
    shop = Principal("shop", "AKSHOP", [Grant(("orders*",), ("read",))])
    assert shop.allows("read", "orders")
    for number in range(100):
        assert shop.allows("read", f"orders{number}" + "x" * 30_000)
        assert not shop.allows("read", f"{number}" + "x" * 30_000)
    assert set(shop._known) == {("read", "orders")}


# -- who guesses -------------------------------------------------------------------------------------------------------


class Guesses:
    """Wrong credentials, each another one; and a clock that stands still."""

    def __init__(self) -> None:
        self.now_s, self.made = 1_000.0, 0
        self.failed = FailedLogins(lambda: self.now_s)

    def guess(self, peer: str, times: int = 1) -> None:
        for _ in range(times):
            self.made += 1
            offered = str(self.made).encode()
            self.failed.check(peer, offered)
            self.failed.note(peer, offered, is_right=False)


def test_who_guesses_is_slowed_down_and_may_go_on_after_the_wait() -> None:
    guesses = Guesses()
    guesses.guess("10.0.0.1", 20)
    with pytest.raises(TooManyFailedLogins, match=r"from 10\.0\.0\.1: wait 6\.000 s") as refusal:
        guesses.guess("10.0.0.1")
    guesses.guess("10.0.0.2")  # another address
    guesses.now_s += refusal.value.wait_s
    guesses.guess("10.0.0.1")
    with pytest.raises(TooManyFailedLogins):
        guesses.guess("10.0.0.1")
    guesses.now_s += 1_000_000
    guesses.guess("10.0.0.1", 20)
    with pytest.raises(TooManyFailedLogins):
        guesses.guess("10.0.0.1")


def test_who_came_in_before_still_does_and_from_that_address_only() -> None:
    guesses = Guesses()
    guesses.failed.note("10.0.0.1", b"right", is_right=True)
    guesses.guess("10.0.0.1", 20)
    guesses.guess("10.0.0.2", 20)
    guesses.failed.check("10.0.0.1", b"right")
    for peer, offered in (("10.0.0.2", b"right"), ("10.0.0.1", b"right, too, but never seen")):
        with pytest.raises(TooManyFailedLogins):
            guesses.failed.check(peer, offered)


def test_the_same_wrong_credentials_again_are_no_new_guess() -> None:
    failed = FailedLogins(lambda: 0.0)
    for _ in range(1_000):
        failed.check("10.0.0.1", b"an old token")
        failed.note("10.0.0.1", b"an old token", is_right=False)
    failed.check("10.0.0.1", b"somebody else's first")


def test_a_few_old_credentials_in_turn_are_no_new_guesses() -> None:
    failed = FailedLogins(lambda: 0.0)
    for number in range(1_000):
        offered = b"an old token, number %d" % (number % 3)
        failed.check("10.0.0.1", offered)
        failed.note("10.0.0.1", offered, is_right=False)
    failed.check("10.0.0.1", b"somebody else's first")


def test_nobody_can_tell_which_addresses_share_a_slot() -> None:
    """Hashes of numbers are the same in every process: another network could be computed that shuts a victim out."""
    address = "2001:db8:1:2::1"
    slots = {FailedLogins()._slot_of(address) for _ in range(20)}
    assert len(slots) > 10


def test_new_credentials_forget_nobody_who_has_come_in() -> None:
    known = credentials_of(TWO)
    assert known.check_bearer("shop-token", "10.0.0.1") is not None
    for number in range(20):
        known.check_bearer(f"token-{number}", "10.0.0.1")
    known.become(credentials_of(TWO))
    assert known.check_bearer("shop-token", "10.0.0.1") is not None
    with pytest.raises(TooManyFailedLogins):
        known.check_bearer("token-20", "10.0.0.1")


def test_a_network_of_version_6_is_one_guesser() -> None:
    guesses = Guesses()
    for number in range(20):
        guesses.guess(f"2001:db8:1:2::{number:x}")
    with pytest.raises(TooManyFailedLogins):
        guesses.guess("2001:db8:1:2:ffff::1")
    guesses.guess("fe80::1%eth0")


def test_a_crowd_of_guessers_takes_no_more_memory_than_one() -> None:
    guesses = Guesses()
    for number in range(20_000):
        with contextlib.suppress(TooManyFailedLogins):
            guesses.guess(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert (len(guesses.failed._slots), len(guesses.failed._proven)) == (4_096, 4_096)
    assert {len(slot) for slot in guesses.failed._slots if slot is not None} == {3}


def test_tokens_and_passwords_are_guessed_from_one_account() -> None:
    known = credentials_of(TWO)
    assert known.check_bearer("shop-token", "10.0.0.1") is not None
    for number in range(10):
        assert known.check_bearer(f"token-{number}", "10.0.0.1") is None
        assert known.check_password("AKSHOP", f"secret-{number}", "10.0.0.1") is None
    for check in (
        lambda: known.check_password("AKSHOP", "shop:secret", "10.0.0.1"),
        lambda: known.check_bearer("AKSHOP:looks-like-a-pair", "10.0.0.1"),
    ):
        with pytest.raises(TooManyFailedLogins):
            check()
    assert known.check_bearer("shop-token", "10.0.0.1") is not None
    assert known.check_password("AKSHOP", "shop:secret", "10.0.0.2") is not None


# -- labels ------------------------------------------------------------------------------------------------------------

SUBSCRIBED = {"sns.topic": "{}", "sns.subscription.x": '{"protocol":"sqs","endpoint":"","target":"billing","url":""}'}
MINE = Principal("mine", "AK", [Grant(("sns.mine*", "mine*"), ("admin", "read", "write"))])


@pytest.mark.parametrize(
    "command",
    [
        CreateQueue(name="sns.mine", config=QueueConfig(labels=SUBSCRIBED)),
        ChangeQueue(name="sns.mine", changes={"labels": SUBSCRIBED}),
        ChangeQueue(name="sns.mine", changes={"labels": {"penstock-import": "x", "sns.topic": "{}"}}),
        ChangeQueue(name="mine", changes={"labels": {"what comes later": "x"}}),
        ChangeQueue(name="mine", changes={"labels": {7: "x"}}),
    ],
)
def test_who_has_not_all_rights_sets_no_labels_of_the_servers(command: CreateQueue | ChangeQueue) -> None:
    with pytest.raises(AccessDenied, match="labels are set by the server: mine may not set"):
        authorize(MINE, command, {})
    for grants in ([Grant(rights=("admin",))], [Grant(("*",), ("admin", "read")), Grant(("m*",))]):
        with pytest.raises(AccessDenied, match="labels"):
            authorize(Principal("some", "AK", grants), command, {})
    authorize(Principal("root", "AK", [Grant()]), command, {})


def test_an_import_may_say_in_a_label_how_far_it_came() -> None:
    for labels in ({LABEL: "0123", f"{SQS_LABEL}Policy": "{}"}, {}, "no labels at all"):
        authorize(MINE, ChangeQueue(name="mine", changes={"labels": labels, "lease_ms": 5}), {})
    authorize(MINE, CreateQueue(name="mine", config=QueueConfig(labels={LABEL: "0123"})), {})
