"""Search: messages by text, JSON path, attribute and time, without taking them; some work at a time.

A search goes through a queue in order, a page at a time, so that others get their turn. It stops after so many messages
or so much time, and says where to go on: an answer can be empty although there is more. Text is looked for in the core,
in whole chunks; the rest is looked at here, message by message.

A JSON path is `$.customer.orders[0].id`: names, and numbers of elements in brackets; `[*]` is any element.
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.commands import Browse, FindOffsets, Offsets, Seen
from penstock.core.delivery.states import State
from penstock.core.queues.attributes import decode_attributes
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import decode_text, milliseconds, seen_message
from penstock.protocols.rest.intervening import came_back, sequences_of
from penstock.protocols.rest.masks import masks_of
from penstock.protocols.rest.operations import JSON, Reply, Resource, operation
from penstock.protocols.rest.problems import invalid
from penstock.protocols.rest.shapes import FoundMessages, SearchQuery, SeenMessage

CSV = "text/csv"
_PAGE_MESSAGES = 500
_PAGE_BYTES = 4 * 1024 * 1024
_LOOKED_AT_MAX = 20_000
_SEARCH_S = 0.5
"""How long one call searches, give or take a page."""
_TURN_S = 0.02
"""How long it keeps others from their turn, give or take a message."""
_STEPS_MAX = 100
_NUMBER_LENGTH_MAX = 9
_ESCAPED = re.compile(r"[^\x00-\x7f]|[<>&'+]")
"""What some writers of JSON escape: all but ASCII, or what HTML would read."""
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\*)\]")

Fits = Callable[[Seen], bool]


def json_forms(text: str) -> tuple[bytes | None, re.Pattern[bytes]]:
    r"""A pattern for a text as it is, and as JSON escapes it; and its longest part that is the same in both.

    >>> part, pattern = json_forms("Ren\u00e9e")
    >>> part, [bool(pattern.search(body)) for body in (b"Ren\xc3\xa9e", rb"Ren\u00e9e", rb"Ren\u00E9e", b"Renee")]
    (b'Ren', [True, True, True, False])
    """
    forms = []
    for character in text:
        form = re.escape(character.encode())
        if _ESCAPED.match(character):
            units = re.findall("....", character.encode("utf-16-be").hex())
            form = b"(?:%s|%s)" % (form, b"".join(rb"\\u(?i:%s)" % unit.encode() for unit in units))
        forms.append(form)
    return max(_ESCAPED.split(text), key=len).encode() or None, re.compile(b"".join(forms))


def parse_path(text: str) -> list[str | int | None]:
    """The steps of a JSON path: names, numbers, and None for any element.

    >>> parse_path("$.customer.orders[0].id"), parse_path("$[*].id")
    (['customer', 'orders', 0, 'id'], [None, 'id'])
    """
    if not text.startswith("$"):
        text = f"$.{text}"
    at = 1
    steps: list[str | int | None] = []
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise invalid(
                f"path is {text[:100]!r}: it is wrong at character {at}; a path looks like $.customer.orders[0].id"
            )
        name, number = found.groups()
        if len(steps) >= _STEPS_MAX or len(number or "") > _NUMBER_LENGTH_MAX:
            raise invalid(f"path has more than {_STEPS_MAX} steps, or a number that no list has")
        steps.append(name if name is not None else None if number == "*" else int(number))
        at = found.end()
    return steps


def values_at(value: Any, steps: list[str | int | None]) -> list[Any]:
    """What a JSON value has at a path.

    >>> values_at({"a": [{"b": 1}, {"b": 2}]}, ["a", None, "b"])
    [1, 2]
    """
    found = [value]
    for step in steps:
        if isinstance(step, str):
            found = [each[step] for each in found if isinstance(each, dict) and step in each]
        elif step is None:
            found = [inner for each in found if isinstance(each, list) for inner in each]
        else:
            found = [each[step] for each in found if isinstance(each, list) and step < len(each)]
    return found


def _has(found: list[Any], wanted: str) -> bool:
    """Whether a text, or a value as JSON, is among these. What is of another kind is not written as JSON to compare it.

    >>> [_has([1, "2", True, [3], 0.5], wanted) for wanted in ("1", "2", "true", "[3]", "0.5", "[3", "1.0")]
    [True, True, True, True, True, False, False]
    """
    if wanted in found:
        return True
    encoded = wanted.encode()
    try:
        value = msgspec.json.decode(encoded)
        if msgspec.json.encode(value) != encoded:
            return False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if isinstance(value, int):
        return any(each == value and type(each) is type(value) for each in found)
    return any(type(each) is type(value) and msgspec.json.encode(each) == encoded for each in found)


class Searching(Resource):
    """Messages that fit."""

    tag = "messages"

    @operation("GET", "/v1/queues/{queue}/search", offers=(JSON, CSV))
    async def search_messages(self, caller: Caller, queue: str, query: SearchQuery) -> FoundMessages | Reply:
        """Search a queue's messages by text, JSON path, attribute, id and time, without receiving them.

        A message must match all conditions. One request looks at a limited number of messages: continue while `next` is
        given, also after an empty page. As `text/csv`, the answer is a table, and `next` is the header `penstock-next`.
        """
        caller.need(queue, Browse)
        await caller.room_for(self.shard, queue, _PAGE_MESSAGES, self.services.settings)
        if query.id is not None:
            found, looked_at, following = await self._by_id(queue, query)
        else:
            found, looked_at, following = await self._search(queue, query)
        await self.shard.know(queue)
        queue_id = self.queue(queue).id
        messages = await masks_of(self.services).hide([seen_message(self.broker, queue_id, one) for one in found])
        if caller.wanted == CSV:
            headers = () if following is None else (("penstock-next", str(following)),)
            return Reply(f"{CSV}; charset=utf-8", [csv_of(messages)], headers)
        return FoundMessages(messages=messages, looked_at=looked_at, next=following)

    async def _by_id(self, queue: str, query: SearchQuery) -> tuple[list[Seen], int, None]:
        assert query.id is not None
        if query.id.isdecimal():
            sequence = min(int(query.id), 2**62)
        else:
            places = await sequences_of(self, queue, [query.id])
            if query.id not in places:
                return [], 0, None
            sequence = places[query.id]
        seen = await self._at(queue, query.channel, sequence)
        if not query.id.isdecimal() and not (seen and seen[0].state is not State.DONE):
            again = await came_back(self, queue, [query.id], query.channel)
            if query.id in again:
                seen = await self._at(queue, query.channel, again[query.id])
        states, fits = _states(query), _filter(query)
        return [one for one in seen if one.state in states and fits(one)], 1, None

    async def _at(self, queue: str, channel: str, sequence: int) -> list[Seen]:
        command = Browse(
            queue=queue, channel=channel, after=sequence - 1, limit=1, states=tuple(State), end=sequence + 1
        )
        seen: list[Seen] = await self.shard.call(command)
        return seen

    async def _search(self, queue: str, query: SearchQuery) -> tuple[list[Seen], int, int | None]:
        fits, states = _filter(query), _states(query)
        contains = _contained(query)
        after, until_s = query.after, time.monotonic() + _SEARCH_S
        found: list[Seen] = []
        looked_at, size = 0, 0
        since_ms = milliseconds(query.since, "since")
        while True:
            times = () if since_ms is None else (since_ms,)
            offsets: Offsets = await self.shard.call(
                FindOffsets(queue=queue, after=after + 1, bytes_max=_PAGE_BYTES, times_ms=times)
            )
            if times and offsets.at_times[0] > after + 1:
                after = offsets.at_times[0] - 1
                since_ms = None
                continue
            cut = min(offsets.cut, after + 1 + _LOOKED_AT_MAX)
            seen: list[Seen] = await self.shard.call(
                Browse(
                    queue=queue,
                    channel=query.channel,
                    after=after,
                    limit=_PAGE_MESSAGES,
                    states=states,
                    contains=contains,
                    end=cut,
                )
            )
            turn_s = time.monotonic() + _TURN_S
            for one in seen:
                if fits(one):
                    found.append(one)
                    size += int(one.chunk.offsets[one.index + 1] - one.chunk.offsets[one.index])
                    if len(found) >= query.limit or size > self.settings.response_bytes_max:
                        return found, looked_at + 1, one.sequence
                looked_at += 1
                now_s = time.monotonic()
                if now_s > until_s:  # bodies can be large, and paths lead to many values
                    return found, looked_at, one.sequence
                if now_s > turn_s:
                    await asyncio.sleep(0)
                    turn_s = time.monotonic() + _TURN_S
            before, after = after, seen[-1].sequence if len(seen) == _PAGE_MESSAGES else max(after, cut - 1)
            looked_at = max(looked_at, min(looked_at + after - before, _LOOKED_AT_MAX) if contains else looked_at)
            if after + 1 >= offsets.end:
                if offsets.partition + 1 >= offsets.partitions:
                    return found, looked_at, None
                after = ((offsets.partition + 1) << PARTITION_SHIFT) - 1
            if looked_at >= _LOOKED_AT_MAX or time.monotonic() > until_s:
                return found, looked_at, after


def _contained(query: SearchQuery) -> bytes | None:
    """What every body that fits contains as it is: this the core looks for."""
    if query.text is None:
        return None
    text = decode_text(query.text, query.encoding, "text")
    return json_forms(query.text)[0] if _is_escaped(query) else text


def _is_escaped(query: SearchQuery) -> bool:
    """Whether bodies in JSON may have the text in another form."""
    return query.text is not None and query.encoding == "text" and _ESCAPED.search(query.text) is not None


def _states(query: SearchQuery) -> tuple[State, ...]:
    return tuple(State[name.upper()] for name in query.states)


def _filter(query: SearchQuery) -> Fits:
    """Whether a message fits what the core does not look at."""
    checks: list[Fits] = []
    since_ms, until_ms = milliseconds(query.since, "since"), milliseconds(query.until, "until")
    if since_ms is not None or until_ms is not None:
        low, high = since_ms or 0, until_ms if until_ms is not None else 1 << 62
        checks.append(lambda one: low <= one.chunk.sent_ms <= high)
    if query.attribute is not None:
        name, wanted = query.attribute, query.attribute_value

        def has_attribute(one: Seen) -> bool:
            attributes = decode_attributes(one.chunk.attributes(one.index))
            return name in attributes and (wanted is None or str(attributes[name]) == wanted)

        checks.append(has_attribute)
    elif query.attribute_value is not None:
        raise invalid("attribute_value needs attribute, its name")
    if query.path is not None:
        steps, value = parse_path(query.path), query.value

        def has_value(one: Seen) -> bool:
            try:
                body = msgspec.json.decode(one.chunk.body(one.index))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return False
            found = values_at(body, steps)
            return bool(found) if value is None else _has(found, value)

        checks.append(has_value)
    elif query.value is not None:
        raise invalid("value needs path, where it is")
    if query.text is not None and _is_escaped(query):
        pattern = json_forms(query.text)[1]
        checks.append(lambda one: pattern.search(one.chunk.body(one.index)) is not None)
    elif query.id is not None and query.text is not None:
        text = decode_text(query.text, query.encoding, "text")
        checks.append(lambda one: text in one.chunk.body(one.index))
    return lambda one: all(check(one) for check in checks)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(messages: list[SeenMessage]) -> bytes:
    """Messages as a table. A text that a spreadsheet would take for a formula gets an apostrophe in front."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["id", "sequence", "sent_at", "state", "attempts", "group", "attributes", "encoding", "body"])
    for each in messages:
        attributes = msgspec.json.encode(each.attributes).decode() if each.attributes else ""
        row = [_cell(each.id), each.sequence, each.sent_at, each.state, each.attempts, _cell(each.group or "")]
        writer.writerow([*row, attributes, each.encoding, _cell(each.body)])
    return text.getvalue().encode()


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
