"""docs/benchmarks.md for users, from the newest run in docs/benchmarks-history.md: `python -m bench.report`.

One chart a question, its conditions in a line, and what was missed. The tables stay in the history.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from docs.svg import AMBER, BLUE, FAINT, GREEN, GREY, RED, Picture

DOCS = Path(__file__).resolve().parent.parent / "docs"
HISTORY = DOCS / "benchmarks-history.md"
PAGE = DOCS / "benchmarks.md"
PICTURES = DOCS / "benchmarks"
MISSED = "**missed**"
_COLOURS = (BLUE, AMBER, FAINT, GREEN, RED, GREY)

HEADING = """# Benchmarks

How fast is Penstock, compared to other systems? Each section answers one question with a chart. `make bench` measures,
and writes this page and [the full tables](benchmarks-history.md).

- **Penstock syncs to disk (`fdatasync`) before each acknowledgement**, except where a section names the memory store.
- Compare the bars within one group. The systems of a group took turns in one run on one machine, so the ratio between
  them means more than the rates themselves.
- The machine: {machine}. Clients, servers and load generators share its cores.
- Each question had a target before it was measured. Each section lists the targets that Penstock missed.
"""


@dataclass(frozen=True)
class Question:
    """What a section of the run answers, and which columns of which table show it."""

    asks: str
    conditions: str
    unit: str
    columns: tuple[str, ...]
    rows: str = ""
    """Only rows whose name has this in it."""


QUESTIONS = {
    "sqs": Question(
        "How does the SQS API compare to ElasticMQ?",
        "64 connections over loopback, each with one request at a time; "
        "ElasticMQ keeps messages in memory, Penstock syncs",
        "requests/s",
        ("Penstock", "ElasticMQ"),
    ),
    "nsq": Question(
        "How does NSQ's own benchmark compare to nsqd?",
        "NSQ's bench_writer and bench_reader, 200 messages of 200 bytes in each MPUB; "
        "nsqd syncs every 2,500 messages, Penstock before each `OK`",
        "messages/s",
        ("Penstock", "nsqd"),
    ),
    "client": Question(
        "How does the Python client compare to those of Redis, RabbitMQ and NATS?",
        "one client and one server over loopback, 200-byte messages; the full tables say when each server syncs",
        "messages/s",
        ("Penstock", "Redis, fsync always", "Redis, fsync every second", "RabbitMQ", "NATS"),
    ),
    "cluster": Question(
        "What do nodes on Kafka cost, compared to Kafka itself?",
        "one broker, one copy, acks=all, 200-byte messages; Penstock's nodes, Kafka and the client on one machine",
        "messages/s",
        ("Penstock", "Kafka"),
    ),
    "spark": Question(
        "How fast does Spark read and write queues, compared to Parquet?",
        "1,000,000 messages of 200 bytes, Spark with `local[2]`",
        "rows/s",
        ("Penstock", "Parquet"),
    ),
    "builds": Question(
        "What do the compiled build and credentials change?",
        "the server's processor time for each message, with 16 clients that send, receive and acknowledge one by one",
        "microseconds; less is better",
        ("compiled", "compiled, credentials", "sources", "sources, credentials"),
    ),
    "many": Question(
        "Do 100,000 queues delay other requests?",
        "the longest time for which answering a request blocked the event loop, with 100 queues and with 100,000",
        "ms; less is better",
        ("held, 100", "held, 100,000"),
    ),
    "e": Question(
        "Does a long backlog slow a queue down?",
        "5,000,000 waiting messages compared with 5,000, in one process",
        "messages/s",
        ("5,000 waiting", "5,000,000 waiting"),
        "messages/s",
    ),
    "b": Question(
        "What does group commit give senders that send one message at a time?",
        "64 senders in one process, each waits for the disk; the baseline is SQLite with one commit for each message",
        "messages/s",
        ("messages/s",),
    ),
    "c": Question(
        "How does an embedded queue compare to queues on SQLite?",
        "200-byte messages, in one process; all three sync every commit",
        "messages/s",
        ("Penstock", "litequeue", "persist-queue"),
    ),
    "a": Question(
        "How close do durable sends come to writing a plain file?",
        "200-byte messages in batches of 1,000, in one process; the file gets one write and one sync for each batch",
        "messages/s",
        ("messages/s",),
    ),
    "d": Question(
        "What does the core cost, compared to a bare Python queue?",
        "send, lease and ack in memory, one thread; the baseline is a deque and a dict without any guarantees",
        "messages/s, by size of a batch",
        ("core, messages/s", "deque and dict, messages/s"),
    ),
}
"""Label of a section -> what it answers. What users compare comes first, then what the parts cost."""

Table = list[list[str]]


def newest_run(history: str) -> tuple[dict[str, str], dict[str, str]]:
    """The facts of the machine, and the text of each section by its label."""
    run = history.split("\n## ")[1]
    before, *sections = run.split("\n### ")
    facts = dict(re.findall(r"^\| (\w+) \| (.+) \|$", before, re.MULTILINE))
    return facts, {section.partition(".")[0]: section for section in sections}


def tables(section: str) -> list[Table]:
    """Its tables, each a list of rows of cells, the header first."""
    found: list[Table] = []
    for block in re.findall(r"(?:^\|.*\|\n?)+", section, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.strip().splitlines()]
        found.append([row for row in rows if not set("".join(row)) <= {"-"}])
    return found


def number(cell: str) -> float:
    """The number that a cell begins with.

    >>> number("1,950,000"), number("0.444 ms")
    (1950000.0, 0.444)
    """
    found = re.match(r"[\d,]*\.?\d+", cell)
    assert found, cell
    return float(found[0].replace(",", ""))


def chart(question: Question, section: str) -> str:
    """Bars for the rows and columns that the question names, as SVG."""
    table = next(each for each in tables(section) if set(question.columns) <= set(each[0]))
    places = [table[0].index(column) for column in question.columns]
    rows = [row for row in table[1:] if question.rows in row[0] and all(row[place] for place in places)]
    is_one_column = len(places) == 1
    scale = max(number(row[place]) for row in rows for place in places)
    line = 20
    block = line * len(places) + (6 if is_one_column else 26)
    picture = Picture(760, 44 + block * len(rows), question.asks)
    picture.words(14, 18, question.unit, anchor="start", size=13, colour=FAINT)
    y = 40
    for row in rows:
        if is_one_column:
            left, width = 290, 340
            picture.words(280, y + 6, row[0], anchor="end", size=13)
        else:
            left, width = 190, 440
            picture.words(14, y + 2, row[0], anchor="start", size=13, bold=True)
            y += line
            scale = max(number(row[place]) for place in places)
        for position, place in enumerate(places):
            length = width * number(row[place]) / scale
            is_ours = not is_one_column or not row[0].startswith(("plain file", "SQLite"))
            colour = _COLOURS[position] if is_ours else AMBER
            if not is_one_column:
                picture.words(left - 10, y + 6, question.columns[position], anchor="end", size=12)
            picture.bar(left, y - 2, max(2, length), 15, colour=colour)
            picture.words(left + length + 8, y + 6, row[place].split(" ")[0], anchor="start", size=12)
            y += line
        y += 6
    return picture.svg()


def misses(section: str) -> list[str]:
    """Every row that missed its target: what it is, what was measured, what was wanted."""
    said = []
    for table in tables(section):
        header = table[0]
        for row in table[1:]:
            for place, cell in enumerate(row):
                if MISSED in cell:
                    measured = _measured(header, row, place)
                    name = f"{header[0]} of {row[0]}" if row[0].isdecimal() else row[0]
                    if not re.match(r"[\d.]", row[1]):
                        name += f" of {row[1]}"
                    said.append(f"{name}: {measured}. The target was {cell.partition(':')[0]}.")
    return said


def _measured(header: list[str], row: list[str], place: int) -> str:
    """The ratio that a target is about: the column that its header names, or else the last one before it."""
    _, _, named = header[place].partition("target, ")
    ratios = [each for each in range(place) if re.match(r"[\d.,]+ \(", row[each])]
    column = header.index(named) if named else ratios[0] if "processor" in header[ratios[-1]] else ratios[-1]
    value, _, rest = row[column].partition(" (")
    what = rest.partition(") ")[2] or header[column].removeprefix("ratio").strip()
    if what.startswith(("to ", "of ")):
        return f"{value} times that of {what[3:]}"
    if what:
        return f"{value}, the ratio of {what}"
    other = next(
        name for name, cell in zip(header[1:], row[1:], strict=True) if name != "Penstock" and cell[0].isdigit()
    )
    other = other.removesuffix(", messages/s")
    return f"{value} times that of {'the ' if other.islower() else ''}{other}"


def page(history: str) -> str:
    """The text of docs/benchmarks.md."""
    facts, sections = newest_run(history)
    machine = f"{facts['processor']}, {facts['memory']}, {facts['filesystem']}, {facts['system']}"
    parts = [HEADING.format(machine=machine).strip()]
    for label, question in QUESTIONS.items():
        section = sections[label]
        title = section.splitlines()[0].partition(". ")[2]
        measured = re.search(r"^\*(Measured .*)\*$", section, re.MULTILINE)
        assert measured, f"section {label} does not say when it was measured, and of which build"
        missed = misses(section)
        verdict = "Every target was reached." if not missed else "Targets that were missed:"
        listed = "".join(f"\n- {each}" for each in missed)
        anchor = re.sub(r"[^\w\- ]", "", f"{label}. {title}".lower()).replace(" ", "-")
        parts.append(
            f"## {question.asks}\n\n![{question.asks}](benchmarks/{label}.svg)\n\n"
            f"{question.conditions[0].upper()}{question.conditions[1:]}. {measured[1]}\n"
            f"[All figures](benchmarks-history.md#{anchor}). {verdict}" + (f"\n{listed}" if missed else "")
        )
    return "\n\n".join(parts) + "\n"


def charts(history: str) -> dict[str, str]:
    """File name -> SVG."""
    return {f"{label}.svg": chart(QUESTIONS[label], text) for label, text in newest_run(history)[1].items()}


def write() -> None:
    """Write the page and its charts anew."""
    history = HISTORY.read_text()
    PAGE.write_text(page(history))
    PICTURES.mkdir(exist_ok=True)
    for name, svg in charts(history).items():
        (PICTURES / name).write_text(svg)


if __name__ == "__main__":
    write()
