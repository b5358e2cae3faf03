"""One queue, many readers: a channel for the auditors, and a report that reads by offset and leases nothing."""

import sys

import penstock

with penstock.open(sys.argv[1] if len(sys.argv) > 1 else ":memory:") as ps:
    orders = ps.queue("orders")
    audit = orders.channel("audit")
    orders.send_many([b"tea", b"coffee", b"cake"])

    report = orders.consumer("report")
    records = report.read(max=2)
    print("report", [record.body for record in records])
    report.ack(records.next_offset)

    print("kitchen", [message.body for message in orders.receive(max=10)])
    print("audit", [message.body for message in audit.receive(max=10)])
    print("report", [record.body for record in report.read()])
