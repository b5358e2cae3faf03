"""Bearer tokens: whose they are, and where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.server.auth import Credentials, Grant, Principal
from penstock.server.settings import InvalidSettings, parse


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
