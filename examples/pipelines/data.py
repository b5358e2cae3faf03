"""Data for the pipelines of this directory: `python data.py clickstream --url penstock://localhost:9325`.

It sends what the pipeline of that name reads, always the same, and prints what has to come out.
"""

import argparse
import json
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import penstock

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
PAGES = ("/", "/tea", "/cart")


def clickstream(ps: penstock.Penstock) -> dict[str, Any]:
    """10 minutes of clicks on three pages, out of order by up to a minute; the cart fails from minute 6 to 8."""
    bodies, views, errors = [], Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for number in range(3_000):
        at = START + timedelta(milliseconds=200 * number)
        if number % 5 == 0:
            at = max(START, at - timedelta(seconds=number % 60))
        page = PAGES[number % 3]
        failed = page == "/cart" and timedelta(minutes=6) <= at - START < timedelta(minutes=8) and number % 2 == 0
        bodies.append(json.dumps(_click(at, page, f"v{number % 70}", 503 if failed else 200)))
        window = (at.strftime("%H:%M"), page)
        views[window] += 1
        errors[window] += failed
    bad = ["no json", '{"status": 200}', json.dumps(_click(START, "/", "v1", 7))]
    end = json.dumps(_click(START + timedelta(hours=1), "/", "v1", 200))  # closes the windows before it
    ps.queue("clicks").send_many([*bodies, *bad, end])
    alerts = sorted([*window, errors[window]] for window in views if errors[window] * 4 > views[window])
    return {
        "windows": len(views),
        "views": views.total(),
        "alerts": alerts,
        "dead": {
            "clicks: check failed: it has a page": 1,
            "clicks: check failed: the status is one of HTTP": 1,
            "clicks: the body is not JSON": 1,
        },
    }


def _click(at: datetime, page: str, visitor: str, status: int) -> dict[str, Any]:
    return {"at": at.isoformat(), "page": page, "visitor": visitor, "status": status}


def paid_orders(ps: penstock.Penstock) -> dict[str, Any]:
    """200 orders of the last minutes, 150 of them paid in time, 20 too late; and 40 rows that arrive too late."""
    now = datetime.now(UTC)
    orders, payments = [], []
    for number in range(200):
        at = now - timedelta(seconds=540 - number)  # the oldest is 9 minutes old
        orders.append(_row(order_id=number, amount=number / 4, at=at))
        if number < 150:
            payments.append(_row(order_id=number, paid=number / 4, at=at + timedelta(seconds=120)))
        elif number < 170:
            payments.append(_row(order_id=number, paid=1.0, at=at - timedelta(seconds=30)))  # before its order
    orders += [_row(order_id=1_000 + n, amount=1.0, at=now - timedelta(minutes=11 + n)) for n in range(25)]
    payments += [_row(order_id=n, paid=1.0, at=now - timedelta(hours=1 + n)) for n in range(13)]
    payments += [_row(order_id=1_000 + n, paid=1.0, at=now + timedelta(hours=1)) for n in range(2)]
    ps.queue("shop.orders").send_many(orders)
    ps.queue("shop.payments").send_many(payments)
    return {
        "paid": list(range(150)),
        "late orders": list(range(1_000, 1_025)),
        "dead": {
            "orders: check failed: it came within 10 minutes": 25,
            "payments: check failed: it came within 10 minutes": 13,
            "payments: check failed: it is not from the future": 2,
        },
    }


def _row(**columns: Any) -> str:
    return json.dumps(columns, default=lambda at: at.isoformat())


def outbox_to_lake(ps: penstock.Penstock) -> dict[str, Any]:
    """A service writes 300 orders and their messages in one transaction each. Each tenth is rolled back."""
    from sqlalchemy import create_engine, text

    from penstock.outbox import Outbox, Relay

    newest: dict[int, list[Any]] = {}
    changes = 0
    with tempfile.TemporaryDirectory() as directory:
        engine = create_engine(f"sqlite:///{Path(directory, 'shop.db')}")
        outbox = Outbox()
        outbox.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER, version INTEGER, status TEXT)"))
        for number in range(300):
            order, version = number % 120, number // 120 + 1
            status = ("new", "paid", "sent")[version - 1]
            values = {"order_id": order, "version": version, "status": status, "amount": order + version / 10}
            with engine.connect() as connection:
                insert = text("INSERT INTO orders VALUES (:order_id, :version, :status)")
                connection.execute(insert, {key: values[key] for key in ("order_id", "version", "status")})
                outbox.send(connection, "shop.changes", json.dumps(values), group=str(order))
                if number % 10 == 7:
                    connection.rollback()
                    continue
                connection.commit()
            newest[order] = [version, status]
            changes += 1
        with Relay(engine, ps, outbox) as relay:
            while relay.sent < changes:
                pass
        engine.dispose()
    return {"changes": changes, "newest": {str(order): each for order, each in newest.items()}}


def sessions(ps: penstock.Penstock) -> dict[str, Any]:
    """40 visitors with visits of 5, 6 and 7 clicks, in a mixed order. Of the last visits, 35 are still open."""
    rows, visits = [], []
    for visitor in range(40):
        for visit in range(3):
            began = START + timedelta(hours=2 * visit, minutes=visitor)
            clicks = [began + timedelta(minutes=4 * click) for click in range(5 + visit)]
            rows += [(at, visitor) for at in clicks]
            visits.append((visitor, began, clicks[-1], len(clicks)))
    rows.sort(key=lambda row: (row[0].hour, row[0].minute // 4, row[1] * 7 % 40))  # mixed within four minutes
    sent = [_row(at=at, visitor=f"v{visitor:02}", page="/") for at, visitor in rows]
    ps.queue("visits.clicks").send_many([*sent, '{"page": "/"}'])
    watermark = max(at for at, _ in rows) - timedelta(minutes=5)
    closed = [
        [f"v{visitor:02}", began.strftime("%H:%M"), int((ended - began).total_seconds()), clicks]
        for visitor, began, ended, clicks in visits
        if ended + timedelta(minutes=30) <= watermark
    ]
    return {"visits": sorted(closed), "dead": {"visitor_clicks: check failed: it has a visitor": 1}}


def dead_letters(ps: penstock.Penstock) -> dict[str, Any]:
    """100 jobs that fail once for one of three reasons. The errors differ in numbers only."""
    ps.create_queue("work.jobs", max_receives=1)
    jobs = ps.queue("work.jobs")
    jobs.send_many([f"job {number}" for number in range(100)])
    for number in range(100):
        message = jobs.receive(wait=5)
        assert message is not None
        seconds = 30 + number % 3
        error = (
            f"timeout after {seconds} s"
            if number % 2
            else "no such customer"
            if number % 10 == 0
            else f"HTTP {500 + number % 4}"
        )
        jobs.release([message.receipt], error=error)
    return {"by_reason": {"timeout after # s": 50, "HTTP #": 40, "no such customer": 10}, "top": "timeout"}


GENERATORS = {each.__name__: each for each in (clickstream, paid_orders, outbox_to_lake, sessions, dead_letters)}


def main() -> None:
    """Send the data of one pipeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", choices=GENERATORS)
    parser.add_argument("--url", default="penstock://localhost:9325")
    options = parser.parse_args()
    with penstock.connect(options.url) as ps:
        print(json.dumps(GENERATORS[options.pipeline](ps), indent=1))


if __name__ == "__main__":
    main()
