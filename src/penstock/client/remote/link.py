"""A link: one way to a server that works at the moment. Transports make them; the caller uses one until it is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.client.remote.address import TransportName
from penstock.core.errors import InvalidRequest, NotSent, PenstockError
from penstock.wire.answers import Answer, Welcome
from penstock.wire.requests import Request

UNWRITABLE = (TypeError, ValueError, OverflowError)
"""What the encoder raises for a value that no frame can hold: half a character, a number of more than 64 bits."""


def unwritable(error: Exception) -> InvalidRequest:
    """Why a command can never be sent: something in it is not what it should be."""
    return InvalidRequest(f"the command cannot be sent, and was not: {error}")


class UpgradeRefused(NotSent):
    """There is a server, and something on the way does not let this transport through: another one may."""


class Listener(Protocol):
    """Who hears what comes over a link."""

    old_session: int
    """The session of the last link; 0 if there was none."""

    @property
    def expects(self) -> bool:
        """Whether anything may come: an answer, or a push."""

    def answered(self, now_ms: int, answers: list[Answer]) -> None:
        """Answers came, and the server's time with them."""

    def refused(self, request: int, error: PenstockError) -> None:
        """A request cannot be sent, and never will."""

    def writable(self) -> None:
        """The link takes requests again."""

    def lost(self, link: Link, error: Exception) -> None:
        """The link is no more. Requests that it took and has not answered may have arrived or not."""


class Link(Protocol):
    """Takes requests, brings answers."""

    @property
    def transport(self) -> TransportName:
        """Which way it goes."""

    @property
    def welcome(self) -> Welcome:
        """What the server said first."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes requests now; if not, `writable` will be heard."""

    def send(self, requests: Sequence[Request]) -> None:
        """Take requests, all in as few frames as possible."""

    def cancel(self, request: int) -> None:
        """A receive need not wait any longer."""

    async def close(self) -> None:
        """Say goodbye. Nothing is heard of it any more."""
