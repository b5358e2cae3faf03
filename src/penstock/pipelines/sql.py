"""SQL over queues, without a job: `select ... from queue('orders')`. A batch read; nothing is taken from the queues.

And which tables a SQL text reads, found without Spark. That is no parser of SQL. It knows strings, comments, quoted
names and parentheses, and takes the names after `from` and `join` (and after the commas of a `from`) for tables.
`extract(year from day)` and `is distinct from` are told apart: a `from` counts outside of parentheses, or in ones that
begin with a query. Names of `with` are no tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import InvalidRequest
from penstock.pipelines.errors import first_line, reason_of
from penstock.pipelines.where import Where

SCHEMA_NOTE = "a queue has the columns key, value (bytes: cast(value as string)), topic, partition, offset, timestamp"


def frame_of(spark: Any, sql: str, where: Where) -> Any:
    """The frame of a query in which `queue('name')` stands for a queue."""
    from pyspark.errors import AnalysisException

    try:
        rewritten, calls = replace_queues(sql)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    try:
        for name, call in calls.items():
            reader = spark.read.format("penstock").options(**where.options(), subscribe=call.queue, **call.options)
            reader.load().createOrReplaceTempView(name)
        return spark.sql(rewritten)
    except AnalysisException as error:
        raise InvalidRequest(f"{first_line(error)} ({SCHEMA_NOTE})") from None


def rows_of(frame: Any) -> Iterator[dict[str, Any]]:
    """The rows of a frame, one after the other, as plain values; bytes that are text become text."""
    try:
        for row in frame.toLocalIterator():
            yield {name: plain(value) for name, value in row.asDict(recursive=True).items()}
    except Exception as error:
        raise InvalidRequest(reason_of(error)) from None


def plain(value: Any) -> Any:
    """A value as JSON can hold it.

    >>> plain(bytearray(b"tea")), plain({"a": bytes([255])}), plain(3)
    ('tea', {'a': '\\\\xff'}, 3)
    """
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


# -- names in SQL ------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+ | --[^\n]* | /\*.*?\*/)
  | (?P<string>'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*")
  | (?P<word>(?:`[^`]+`|[A-Za-z_]\w*)(?:\s*\.\s*(?:`[^`]+`|[A-Za-z_]\w*))*)
  | (?P<arrow>=>)
  | (?P<other>[0-9.]+ | .)
    """,
    re.VERBOSE | re.DOTALL,
)
_QUERY_WORDS = ("select", "with", "from", "values", "table")
_AFTER_TABLE = frozenset(
    re.findall(
        r"\w+",
        "where join inner left right full cross semi anti natural on using group order having limit union except "
        "intersect lateral window cluster distribute sort tablesample pivot unpivot select",
    )
)


@dataclass(frozen=True)
class Token:
    """A piece of SQL: its kind, its text, and where it starts and ends."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The text of a word as SQL compares it, quotes included; empty for anything else."""
        return re.sub(r"\s", "", self.text).lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """The word as the name of a table: without quotes."""
        return self.word.replace("`", "")


def tokens(sql: str) -> list[Token]:
    """The pieces of a SQL text, without blanks and comments."""
    found = (Token(match.lastgroup or "", match.group(), match.start(), match.end()) for match in _TOKEN.finditer(sql))
    return [token for token in found if token.kind != "skip"]


def tables_of(sql: str) -> tuple[str, ...]:
    """The tables that a query reads, in the order they come.

    >>> tables_of("select a, extract(year from b) from orders o, items join `stock` on true where c is distinct from d")
    ('orders', 'items', 'stock')
    >>> tables_of("with big as (select * from orders) select * from big join range(10)")
    ('orders',)
    """
    pieces = tokens(sql)
    triples = zip(pieces, pieces[1:], pieces[2:], strict=False)
    own = {one.name for one, two, three in triples if two.word == "as" and three.text == "(" and one.word}
    found = [name for name in _named_tables(pieces) if name not in own]
    return tuple(dict.fromkeys(found))


def is_stateful(sql: str) -> bool:
    """Whether a query keeps state from batch to batch (groups, joins, distinct, windows of rows).

    >>> is_stateful("select count(*) from orders group by day"), is_stateful("select a from orders where b > 0")
    (True, False)
    """
    return any(token.word in ("group", "distinct", "join", "count", "sum") for token in tokens(sql))


def _named_tables(pieces: list[Token]) -> Iterator[str]:
    is_query = [True]
    for at, token in enumerate(pieces):
        if token.text == "(":
            following = pieces[at + 1] if at + 1 < len(pieces) else token
            is_query.append(following.word in _QUERY_WORDS or following.text == "(")
        elif token.text == ")" and len(is_query) > 1:
            is_query.pop()
        elif token.word == "join" or (token.word == "from" and is_query[-1] and not _is_distinct_from(pieces, at)):
            yield from _table_list(pieces, at + 1, commas=token.word == "from")


def _is_distinct_from(pieces: list[Token], at: int) -> bool:
    before = [piece.word for piece in pieces[max(0, at - 3) : at]]
    return before[-1:] == ["distinct"] and "is" in before


def _table_list(pieces: list[Token], at: int, *, commas: bool) -> Iterator[str]:
    """The table that stands here, and those after commas."""
    while at < len(pieces) and pieces[at].word:
        is_call = at + 1 < len(pieces) and pieces[at + 1].text == "("
        if not is_call and pieces[at].word not in ("lateral", "select", "stream"):
            yield pieces[at].name
        at += 1
        if is_call:
            return
        if at < len(pieces) and pieces[at].word == "as":
            at += 1
        if at < len(pieces) and pieces[at].word and pieces[at].word not in _AFTER_TABLE:
            at += 1
        if not commas or at >= len(pieces) or pieces[at].text != ",":
            return
        at += 1


# -- queue('orders') ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueueCall:
    """`queue('orders', startingOffsets => 'earliest')` in a SQL text."""

    queue: str
    options: dict[str, str] = field(default_factory=dict)


def replace_queues(sql: str) -> tuple[str, dict[str, QueueCall]]:
    """Put the name of a view in the place of every `queue(...)`, and say what each view is to be.

    >>> sql, calls = replace_queues("select * from queue('orders') where body = 'queue(1)'")
    >>> sql
    "select * from penstock_queue_1 where body = 'queue(1)'"
    >>> calls
    {'penstock_queue_1': QueueCall(queue='orders', options={})}
    """
    pieces = tokens(sql)
    calls: dict[str, QueueCall] = {}
    parts, done = [], 0
    for at, token in enumerate(pieces[:-1]):
        before = pieces[at - 1].word if at else ""
        if (
            token.word != "queue"
            or pieces[at + 1].text != "("
            or (before not in ("from", "join") and pieces[max(0, at - 1)].text != ",")
        ):
            continue
        call, close = _read_call(pieces, at + 2)
        name = next((name for name, known in calls.items() if known == call), f"penstock_queue_{len(calls) + 1}")
        calls[name] = call
        parts += [sql[done : token.start], name]
        done = pieces[close].end
    return "".join(parts) + sql[done:], calls


def _read_call(pieces: list[Token], at: int) -> tuple[QueueCall, int]:
    """Read the arguments that start here; returns the call, and where its closing parenthesis is."""
    close = next((n for n in range(at, len(pieces)) if pieces[n].text == ")"), None)
    if close is None:
        raise ValueError("queue( is not closed: write queue('orders')")
    arguments: list[list[Token]] = [[]]
    for token in pieces[at:close]:
        if token.text == ",":
            arguments.append([])
        else:
            arguments[-1].append(token)
    first, *others = arguments
    if len(first) != 1 or first[0].kind != "string":
        raise ValueError("queue(...) takes a queue's name in quotes: queue('orders')")
    options = {}
    for argument in others:
        if len(argument) != 3 or argument[1].kind != "arrow" or not argument[0].word:
            raise ValueError("after its name, queue(...) takes options like startingOffsets => 'earliest'")
        options[argument[0].text] = _text(argument[2])
    return QueueCall(_text(first[0]), options), close


def _text(token: Token) -> str:
    return token.text[1:-1].replace("''", "'") if token.kind == "string" else token.text
