"""Masks: what patterns match in bodies, attributes, groups and errors is not shown to who looks at messages.

They are for people who look: browsing, searching, single messages, dead letters. Whoever receives messages gets them as
they are, because he has to work with them. The console's page may neither receive nor read by offset on a server with
masks; with a right to read, other programs may.

A process of its own looks for the patterns (`mask_process`). A text that takes it too long is hidden as a whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from penstock.core.queues.origin import error_group
from penstock.protocols.rest import mask_process
from penstock.protocols.rest.contents import decode_text
from penstock.protocols.rest.mask_process import MASKED, TEXT_S
from penstock.protocols.rest.shapes import Content, TypedValue
from penstock.server.node import Services

_AT_A_TIME = 64
_CHARACTERS_AT_A_TIME = 4 * 1024 * 1024
_SLOW_MAX = 3
"""Texts of one request that may take too long. The others are hidden then, unlooked at."""
_REMEMBERED_MAX = 1_000
"""Texts that took too long, which are not tried again."""
_HASH_BYTES = 16
_Message = TypeVar("_Message", bound=Content)
_Mask = Callable[[str], tuple[str, bool]]

log = logging.getLogger("penstock.masks")


class Masks:
    """The patterns of `[console] mask`."""

    def __init__(self, patterns: list[str]) -> None:
        self._patterns = patterns
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asking = asyncio.Lock()
        self._asking = threading.Lock()
        """As the other one, for a thread whose caller no longer waits for it."""
        self._slow: dict[bytes, None] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    async def texts(self, texts: Iterable[str]) -> dict[str, tuple[str, bool]]:
        """Texts with what matches hidden, and whether anything did."""
        if not self._patterns:
            return {text: (text, False) for text in texts}
        async with self._is_asking:
            return await asyncio.to_thread(self._ask, list(dict.fromkeys(texts)))

    async def text(self, text: str) -> str:
        """A text with what matches hidden."""
        return (await self.texts([text]))[text][0]

    async def groups_of(self, errors: Iterable[str]) -> dict[str, str]:
        """What each error has in common with others, after what is masked."""
        return {error: error_group(text) for error, (text, _) in (await self.texts(errors)).items()}

    async def hide(self, messages: list[_Message]) -> list[_Message]:
        """The same messages, with what matches hidden. A body that is no text is hidden as a whole."""
        if not self._patterns:
            return messages
        wanted: dict[str, tuple[str, bool]] = {}
        for message in messages:
            _hide(message, lambda text: wanted.setdefault(text, (text, False)))
        found = await self.texts(wanted)
        for message in messages:
            _hide(message, found.__getitem__)
        return messages

    async def close(self) -> None:
        """End the process. The next text would start another one."""
        async with self._is_asking:
            await asyncio.to_thread(self._end)

    # -- in a thread --

    def _ask(self, texts: list[str]) -> dict[str, tuple[str, bool]]:
        with self._asking:
            found = {"": ("", False)} | {text: (MASKED, True) for text in texts if text}
            wanted = [text for text in texts if text and not (self._slow and _hash(text) in self._slow)]
            at = slow = 0
            while at < len(wanted) and slow < _SLOW_MAX:
                batch = _batch(wanted, at)
                try:
                    for text, answer in zip(batch, self._answers(batch), strict=True):
                        found[text] = answer
                        at += 1
                except EOFError:
                    self._end()
                    self._remember(wanted[at])
                    slow, at = slow + 1, at + 1
                except OSError as error:
                    self._end()
                    log.error("texts are hidden: the process that looks for [console] mask cannot be used: %s", error)
                    break
            return found

    def _answers(self, batch: list[str]) -> Iterator[tuple[str, bool]]:
        if self._process is not None and self._process.poll() is not None:  # it was ended in the meantime
            self._end()
        if self._process is None:
            command = [sys.executable, "-m", mask_process.__name__]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            assert self._process.stdin is not None
            mask_process.put(self._process.stdin, self._patterns)  # type: ignore[arg-type]
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        mask_process.put(asked, batch)  # type: ignore[arg-type]
        for _ in batch:
            yield msgspec.msgpack.decode(mask_process.take(told), type=tuple[str, bool])  # type: ignore[arg-type]

    def _remember(self, text: str) -> None:
        log.warning(
            "a text of %d characters is hidden as a whole: to look for [console] mask took more than %g s",
            len(text),
            TEXT_S,
        )
        if len(self._slow) >= _REMEMBERED_MAX:
            del self._slow[next(iter(self._slow))]
        self._slow[_hash(text)] = None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:
                pass


def _batch(texts: list[str], first: int) -> list[str]:
    """Some texts from one on: so many, and so many characters, but one in any case."""
    length, stop = len(texts[first]), first + 1
    while stop < len(texts) and stop - first < _AT_A_TIME and length + len(texts[stop]) <= _CHARACTERS_AT_A_TIME:
        length += len(texts[stop])
        stop += 1
    return texts[first:stop]


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).digest()


def _hide(message: Content, mask: _Mask) -> None:
    if message.encoding == "text":
        message.body, is_masked = mask(message.body)
    else:
        _, is_masked = mask(decode_text(message.body, "base64", "body").decode("utf-8", "replace"))
        if is_masked:
            message.body, message.encoding = MASKED, "text"
    for name, value in message.attributes.items():
        text = value.value if isinstance(value, TypedValue) else str(value)
        if isinstance(value, TypedValue) and value.encoding == "base64":
            text = decode_text(value.value, "base64", name).decode("utf-8", "replace")
        hidden, found = mask(text)
        if found:
            message.attributes[name] = hidden
            is_masked = True
    channels = getattr(message, "channels", ())
    failures = [*getattr(message, "failures", ()), *(one for each in channels for one in each.failures)]
    for part, field in (
        (message, "group"),
        (message, "dedup_id"),
        *((each, "error") for each in failures),
        *((each, "text") for each in getattr(message, "events", ())),
    ):
        hidden, found = mask(getattr(part, field, None) or "")
        if found:
            setattr(part, field, hidden)
            is_masked = True
    message.masked = is_masked


_SHARED = "masks"


def masks_of(services: Services) -> Masks:
    """The masks of this server."""
    found = services.extras.get(_SHARED)
    if found is None:
        found = services.extras[_SHARED] = Masks(services.settings.console.mask)
    assert isinstance(found, Masks)
    return found
