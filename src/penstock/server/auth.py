"""Who may do what: access keys, their secrets, and their rights on queues by name.

Front ends verify in their own way (a signature, a password) who calls, and get a `Principal`. Which right a command
needs is said where it is declared (`penstock.core.traits`); here it is asked for: `authorize` for a command as it came,
`authorize_kinds` for a front end that asks before it has read a whole request. Each protocol has its own error for the
`AccessDenied` that they raise. `Principal.may` says what to leave out of lists. The rights:

    read     receive, settle, give back, extend; look at queues; read by offset; make a channel to read through
    write    send (a queue comes to be with the first message)
    admin    create, change, purge and delete queues; pause, purge and delete channels; move messages

None of them includes another. Secrets are compared in constant time, and show in no log: their `repr` hides them.

A bearer token is either `access_key:secret_key`, or a token of its own that the credential has beside its secret.
Tokens are looked up by a keyed hash, whose key is drawn when the server starts: how long a look-up takes says nothing
about the tokens that are there.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec

from penstock.core.commands import (
    CancelRedrive,
    ChangeQueue,
    Command,
    CommitWork,
    CreateQueue,
    DescribeQueue,
    RedriveTask,
    Send,
    StartRedrive,
)
from penstock.core.errors import AccessDenied, TooManyFailedLogins
from penstock.core.traits import RIGHTS, Right

_REMEMBERED_MAX = 10_000
_REMEMBERED_LENGTH_MAX = 200
"""No queue has a longer name: who asks for one may ask for anything, and as often as he likes."""
_HASH_KEY_BYTES = 32
_OWNER_BYTES = 12
_PROOF_BYTES = 16
_LOGIN_SLOTS = 4_096
_FAILED_LOGINS_BURST = 20
_FAILED_LOGIN_S = 6.0
_KNOWN_GUESSES_MAX = 8
_IPV6_PREFIX = 64
"""What one customer of a provider has, at least."""
_OPEN_LABELS = re.compile(r"sqs\.|penstock-import\Z")
"""Give nobody a right on another queue: attributes of SQS, and how far an import came."""
_OWNED = re.compile(rf"[0-9A-Fa-f]{{{2 * _OWNER_BYTES}}}-")
"""In capitals as well: not every file system tells them apart."""


class Secret:
    """A text that shows itself to nobody who does not ask for it.

    >>> Secret("open sesame")
    Secret(***)
    >>> Secret("open sesame").matches("open sesame")
    True
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, to compute a signature with."""
        return self._text

    def matches(self, text: str) -> bool:
        """Whether this is the text, in a time that does not tell how much of it is."""
        return hmac.compare_digest(self._text.encode(), text.encode("utf-8", "surrogateescape"))

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> str:
        raise TypeError("a secret is neither pickled nor copied")


class Grant(msgspec.Struct, frozen=True):
    """Rights on the queues whose names match one of the patterns (`*` and `?` as in a shell)."""

    queues: tuple[str, ...] = ("*",)
    rights: tuple[Right, ...] = RIGHTS


class Principal:
    """Who calls, and what it may do.

    >>> worker = Principal("worker", "AK1", [Grant(("orders*",), ("read",))])
    >>> worker.allows("read", "orders-eu"), worker.allows("write", "orders-eu"), worker.allows("read", "billing")
    (True, False, False)
    """

    __slots__ = ("_grants", "_known", "access_key", "account", "name")

    def __init__(self, name: str, access_key: str, grants: Iterable[Grant], *, account: str = "") -> None:
        self.name = name
        self.access_key = access_key
        self.account = account
        """Its AWS account, if it was given one."""
        self._grants = tuple(grants)
        self._known: dict[tuple[str, str], bool] = {}

    def allows(self, right: Right, queue: str) -> bool:
        known = self._known.get((right, queue))
        if known is None:
            known = any(_matches(grant, queue) for grant in self._grants if right in grant.rights)
            if len(queue) <= _REMEMBERED_LENGTH_MAX:
                if len(self._known) >= _REMEMBERED_MAX:
                    self._known.clear()
                self._known[right, queue] = known
        return known

    def may(self, queue: str, *kinds: type[Command]) -> bool:
        """Whether it may do one of these commands with the queue.

        >>> from penstock.core.commands import Receive, Send
        >>> worker = Principal("worker", "AK1", [Grant(("orders*",), ("read",))])
        >>> worker.may("orders-eu", Receive), worker.may("orders-eu", Send)
        (True, False)
        """
        if self is ANYBODY:
            return True
        for kind in kinds:
            right = kind.traits.right
            if right is not None and right != "any" and self.allows(right, queue):
                return True
        return False

    def may_see(self, queue: str) -> bool:
        return self.may(queue, *TO_SEE)

    def has(self, right: Right) -> bool:
        """Whether it has this right on any queue, whichever."""
        return any(right in grant.rights for grant in self._grants)

    def allows_all(self, right: Right) -> bool:
        """Whether it has this right on every queue, whatever its name.

        >>> [Principal("a", "AK1", [Grant((queues,))]).allows_all("read") for queues in ("*", "?", "[!b]*")]
        [True, False, False]
        """
        return any(right in grant.rights and "*" in grant.queues for grant in self._grants)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Everything that it may do."""
        return self._grants

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"


def _matches(grant: Grant, queue: str) -> bool:
    return any(fnmatchcase(queue, pattern) for pattern in grant.queues)


TO_SEE: tuple[type[Command], ...] = (DescribeQueue, Send, ChangeQueue)
"""Who may do any of these with a queue may know that it is there: between them they need all the rights."""
ANYBODY = Principal("anybody", "", [Grant()])
"""Who calls a server that knows no credentials: may do everything."""
STRANGER = Principal("stranger", "", [])
"""Who visits a link of a notification without a signature, where credentials are required."""


def authorize(principal: Principal, command: Command, tasks: Mapping[int, RedriveTask]) -> None:
    """`AccessDenied` unless the principal may do this. Redrives go by their queues: `tasks` says which those are."""
    if principal is ANYBODY:
        return
    name = type(command).__name__
    if not command.traits.public:
        raise AccessDenied(f"{name} is not for callers from outside")
    if isinstance(command, CommitWork) and command.mark is not None and not principal.has("write"):
        raise AccessDenied(f"{principal.name} needs the right to write at least one queue to mark work as done")
    needed = list(command.needs())
    if isinstance(command, CancelRedrive) and (task := tasks.get(command.task)) is not None:
        needed.append(("admin", task.queue))
    for right, queue in needed:
        if not principal.allows(right, queue):
            raise AccessDenied(f"{principal.name} needs the right to {right} queue {queue!r} for {name}")
    if isinstance(command, CreateQueue):
        check_labels(principal, command.config.labels)
    elif isinstance(command, ChangeQueue):
        check_labels(principal, command.changes.get("labels"))


def authorize_kinds(principal: Principal, queue: str, *kinds: type[Command]) -> None:
    """`AccessDenied` unless the principal may do one of these commands with the queue: `authorize`, asked before there
    is a command. What needs more than the right on its queue (`Command.needs`) is asked about as well once it is there.

    >>> from penstock.core.commands import Receive
    >>> authorize_kinds(Principal("till", "AK1", [Grant(("orders",), ("write",))]), "orders", Receive)
    Traceback (most recent call last):
    penstock.core.errors.AccessDenied: till needs the right to read queue 'orders' for Receive
    >>> authorize_kinds(Principal("till", "AK1", []), "orders", *TO_SEE)
    Traceback (most recent call last):
    penstock.core.errors.AccessDenied: till has no right on queue 'orders'
    """
    if not principal.may(queue, *kinds):
        if kinds == TO_SEE:
            raise AccessDenied(f"{principal.name} has no right on queue {queue!r}")
        rights = " or ".join(dict.fromkeys(str(kind.traits.right) for kind in kinds))
        names = " or ".join(kind.__name__ for kind in kinds)
        raise AccessDenied(f"{principal.name} needs the right to {rights} queue {queue!r} for {names}")


def check_labels(principal: Principal, labels: object) -> None:
    """`AccessDenied` for a label by which a front end would act for the caller: with a topic's, SNS sends to queues.

    Who has all rights on all queues may set them: so an export is brought back as it was.

    >>> check_labels(Principal("shop", "AK1", [Grant(("shop*",))]), {"sqs.Policy": "{}"})
    """
    if not isinstance(labels, Mapping) or all(principal.allows_all(right) for right in RIGHTS):
        return
    for label in labels:
        if not isinstance(label, str) or _OPEN_LABELS.match(label) is None:
            raise AccessDenied(
                f"labels are set by the server: {principal.name} may not set {str(label)[:100]!r} without all "
                "rights on all queues"
            )


def restrict(principal: Principal, command: Command) -> None:
    """Let a redrive to where messages came from reach only what the principal may administer.

    >>> from penstock.core.commands import StartRedrive
    >>> redrive = StartRedrive(queue="shop.dead")
    >>> restrict(Principal("shop", "AK1", [Grant(("shop*",)), Grant(("*",), ("read",))]), redrive)
    >>> redrive.origins
    ['shop*']
    """
    if not isinstance(command, StartRedrive) or command.target is not None or command.discard:
        return
    if not principal.allows_all("admin"):
        command.origins = [each for grant in principal.grants if "admin" in grant.rights for each in grant.queues]


def owned(principal: Principal, name: str) -> str:
    """A name that a caller has chosen, as it is kept: nobody else's is the same, whatever he calls it.

    It depends on the principal's name alone, so that it lasts while keys and tokens change.

    >>> owned(ANYBODY, "stream"), owned(Principal("shop", "AK1", []), "stream")
    ('stream', 'f321303ff3922965922adaf4-stream')
    """
    if principal is ANYBODY:
        return name
    return f"{hashlib.blake2b(principal.name.encode(), digest_size=_OWNER_BYTES).hexdigest()}-{name}"


def is_owned(name: str) -> bool:
    """Whether a kept name has an owner: an owner's digest can be computed, so nobody else may ask for such a name.

    >>> is_owned(owned(Principal("shop", "AK1", []), "stream")), is_owned("stream")
    (True, False)
    """
    return _OWNED.match(name) is not None


def owner_of(name: str) -> str | None:
    """What says whose a kept name is; None if it has no owner.

    >>> owner_of(owned(Principal("shop", "AK1", []), "stream")), owner_of("stream")
    ('f321303ff3922965922adaf4', None)
    """
    return name[: 2 * _OWNER_BYTES] if is_owned(name) else None


class Credential:
    """An access key, its secret, whom they stand for, and perhaps a token of its own."""

    __slots__ = ("access_key", "password", "principal", "secret", "token", "user")

    def __init__(
        self,
        access_key: str,
        secret: Secret,
        principal: Principal,
        token: Secret | None = None,
        user: str | None = None,
        password: Secret | None = None,
    ) -> None:
        self.access_key = access_key
        self.secret = secret
        self.principal = principal
        self.token = token
        self.user = user
        self.password = password
        """What a person logs in with, for the same."""

    def __repr__(self) -> str:
        return f"Credential({self.access_key!r}, {self.secret!r}, {self.principal!r})"


class FailedLogins:
    """Slows down who guesses: 20 wrong credentials from an address, then one in six seconds.

    Past that, credentials from there are not looked at, right ones included: otherwise guessing would go on. Only who
    has come in from that address before, with these very credentials, still does. The same wrong ones again are no new
    guess: a few programs with old tokens lock nobody out.

    There are as many slots as there are, however many addresses call: two of them may share one. Which ones do depends
    on a key of this process, so that nobody can choose an address that shuts another one out.
    """

    __slots__ = ("_clock", "_key", "_proven", "_slots")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = os.urandom(_HASH_KEY_BYTES)
        self._slots: list[tuple[float, float, tuple[bytes, ...]] | None] = [None] * _LOGIN_SLOTS
        """Guesses left, when that was, and the last different guesses; None where nobody has failed."""
        self._proven = [b""] * _LOGIN_SLOTS
        """Hashes of addresses and credentials that have come in, each where it belongs; a later one takes the place."""

    def check(self, peer: str, offered: bytes) -> None:
        """`TooManyFailedLogins` if these credentials, told apart by their keyed hash, are not to be looked at now."""
        at = self._slot_of(peer)
        if self._slots[at] is None:
            return
        left = self._left(at)
        if left < 1 and not self._is_proven(peer, offered):
            wait_s = (1 - left) * _FAILED_LOGIN_S
            raise TooManyFailedLogins(f"too many failed logins from {peer}: wait {wait_s:.3f} s, then try again")

    def note(self, peer: str, offered: bytes, *, is_right: bool) -> None:
        """These credentials were looked at."""
        if is_right:
            proof = self._hash(peer.encode(), offered)
            self._proven[_place(proof)] = proof
            return
        at = self._slot_of(peer)
        slot = self._slots[at]
        known = () if slot is None else slot[2]
        if offered not in known:
            self._slots[at] = (self._left(at) - 1, self._clock(), (offered, *known[: _KNOWN_GUESSES_MAX - 1]))

    def _is_proven(self, peer: str, offered: bytes) -> bool:
        proof = self._hash(peer.encode(), offered)
        return self._proven[_place(proof)] == proof

    def _left(self, at: int) -> float:
        slot = self._slots[at]
        if slot is None:
            return _FAILED_LOGINS_BURST
        left, at_s, _ = slot
        return min(_FAILED_LOGINS_BURST, left + (self._clock() - at_s) / _FAILED_LOGIN_S)

    def _slot_of(self, peer: str) -> int:
        """An address of version 6 stands for its network: whoever has one has all of that."""
        if ":" in peer and "%" not in peer:
            peer = str(ipaddress.ip_network(f"{peer}/{_IPV6_PREFIX}", strict=False))
        return _place(self._hash(peer.encode()))

    def _hash(self, *parts: bytes) -> bytes:
        return hashlib.blake2b(b"\0".join(parts), digest_size=_PROOF_BYTES, key=self._key).digest()


def _place(digest: bytes) -> int:
    return int.from_bytes(digest[:4], "little") % _LOGIN_SLOTS


class Credentials:
    """Every access key that the server knows. None at all means: everybody on this machine may call.

    >>> nobody = Credentials([])
    >>> nobody.are_required, nobody.by_access_key("AK1")
    (False, None)
    """

    __slots__ = ("_by_access_key", "_by_token", "_by_user", "_decoy", "_failed", "_hash_key", "are_required")

    def __init__(self, credentials: Iterable[Credential] = ()) -> None:
        self._by_access_key = {each.access_key: each for each in credentials}
        self._by_user = {each.user: each for each in self._by_access_key.values() if each.user is not None}
        self.are_required = bool(self._by_access_key)
        """Whether a caller has to say, and prove, who it is."""
        self._decoy = Secret("there is no such access key")
        self._failed = FailedLogins()
        self._hash_key = os.urandom(_HASH_KEY_BYTES)
        self._by_token = self._tokens()

    def become(self, others: Credentials) -> None:
        """Know these from now on, wherever they are held. Whoever has proved who it is stays that while connected.

        The key of the hashes stays: by them it is known who has come in before, and what was guessed.
        """
        assert others.are_required == self.are_required
        self._by_access_key, self._by_user = others._by_access_key, others._by_user
        self._by_token = self._tokens()

    def by_access_key(self, access_key: str) -> Credential | None:
        """The credential with this access key, which front ends check a signature with."""
        return self._by_access_key.get(access_key)

    def check_password(self, access_key: str, secret_key: str, peer: str = "") -> Principal | None:
        """Whom access key and secret, or user and password, stand for; None if they do not go together.

        `TooManyFailedLogins` if too many wrong ones came from the peer.
        """
        offered = self._hash(f"{access_key}:{secret_key}")
        self._failed.check(peer, offered)
        principal = self._of_password(access_key, secret_key)
        self._failed.note(peer, offered, is_right=principal is not None)
        return principal

    def check_bearer(self, token: str, peer: str = "") -> Principal | None:
        """Whom a bearer token stands for: a credential's own token, or `access_key:secret_key`. None if nobody.

        >>> worker = Principal("worker", "AK1", [Grant()])
        >>> known = Credentials([Credential("AK1", Secret("s3cret"), worker, Secret("tok-1"))])
        >>> known.check_bearer("tok-1"), known.check_bearer("AK1:s3cret"), known.check_bearer("AK1:guess")
        (Principal('worker'), Principal('worker'), None)
        """
        offered = self._hash(token)
        self._failed.check(peer, offered)
        credential = self._by_token.get(offered)
        if credential is not None and credential.token is not None and credential.token.matches(token):
            principal: Principal | None = credential.principal
        else:
            access_key, _, secret_key = token.partition(":")
            principal = self._of_password(access_key, secret_key)
        self._failed.note(peer, offered, is_right=principal is not None)
        return principal

    def _of_password(self, access_key: str, secret_key: str) -> Principal | None:
        credential = self._by_access_key.get(access_key)
        secret = self._decoy if credential is None else credential.secret
        if credential is None and (named := self._by_user.get(access_key)) is not None and named.password is not None:
            credential, secret = named, named.password
        is_right = secret.matches(secret_key)
        return credential.principal if is_right and credential is not None else None

    def _tokens(self) -> dict[bytes, Credential]:
        known = self._by_access_key.values()
        return {self._hash(each.token.reveal()): each for each in known if each.token is not None}

    def _hash(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode("utf-8", "surrogateescape"), key=self._hash_key).digest()
