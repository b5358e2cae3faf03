"""Masks: what patterns match in bodies, attributes, groups and errors is not shown to who looks at messages.

They are for people who look: browsing, searching, single messages, dead letters. Whoever receives messages gets them as
they are, because he has to work with them. The console's page may neither receive nor read by offset on a server with
masks; with a right to read, other programs may.
"""

from __future__ import annotations

import re
from typing import TypeVar

from penstock.core.queues.origin import error_group
from penstock.protocols.rest.contents import decode_text
from penstock.protocols.rest.shapes import Content, TypedValue
from penstock.server.node import Services

MASKED = "•••"
_ESCAPE = re.compile(r"\\(?:u(?![dD][89a-fA-F])([0-9a-fA-F]{4})|/)")
"""A character as JSON may write it."""
_Message = TypeVar("_Message", bound=Content)


class Masks:
    """The patterns of `[console] mask`.

    >>> Masks([r"[0-9]{16}"]).text("card 4111111111111111, 2 pieces")
    ('card •••, 2 pieces', True)
    """

    __slots__ = ("_patterns",)

    def __init__(self, patterns: list[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def text(self, text: str) -> tuple[str, bool]:
        r"""A text with what matches hidden, and whether anything did: also as JSON's escapes (`\u0065`).

        >>> Masks(["secret"]).text(r'{"k": "s\u0065cret"}')
        ('{"k": "•••"}', True)
        """
        count = 0
        if self._patterns and "\\" in text:
            plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "/", text)
            if any(pattern.search(plain) for pattern in self._patterns):
                text = plain
        for pattern in self._patterns:
            text, found = pattern.subn(MASKED, text)
            count += found
        return text, bool(count)

    def hide(self, message: _Message) -> _Message:
        """The same message, with what matches hidden. A body that is no text is hidden as a whole."""
        if not self._patterns:
            return message
        if message.encoding == "text":
            message.body, is_masked = self.text(message.body)
        else:
            _, is_masked = self.text(decode_text(message.body, "base64", "body").decode("utf-8", "replace"))
            if is_masked:
                message.body, message.encoding = MASKED, "text"
        for name, value in message.attributes.items():
            text = value.value if isinstance(value, TypedValue) else str(value)
            if isinstance(value, TypedValue) and value.encoding == "base64":
                text = decode_text(value.value, "base64", name).decode("utf-8", "replace")
            hidden, found = self.text(text)
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
            hidden, found = self.text(getattr(part, field, None) or "")
            if found:
                setattr(part, field, hidden)
                is_masked = True
        message.masked = is_masked
        return message

    def group_of(self, error: str) -> str:
        r"""What errors have in common, after what is masked.

        >>> Masks([r"token=\S+"]).group_of("refused: token=abc after 3 s"), Masks([]).group_of("after 3 s")
        ('refused: ••• after # s', 'after # s')
        """
        return error_group(self.text(error)[0])


_SHARED = "masks"


def masks_of(services: Services) -> Masks:
    """The masks of this server."""
    found = services.extras.get(_SHARED)
    if found is None:
        found = services.extras[_SHARED] = Masks(services.settings.console.mask)
    assert isinstance(found, Masks)
    return found
