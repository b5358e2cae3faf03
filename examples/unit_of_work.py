"""Take from one queue and put to two others: all of it, or nothing."""

import sys

import penstock

with penstock.open(sys.argv[1] if len(sys.argv) > 1 else ":memory:") as ps:
    ps.queue("payments").send(b"invoice 17: 20.00")

    try:
        with ps.unit_of_work() as work:
            payment = work.take("payments")
            work.put("ledger", b"20.00 in")
            raise ConnectionError("the mail server is away")
    except ConnectionError:
        print("rolled back:", ps.queues())

    with ps.unit_of_work() as work:
        payment = work.take("payments", wait=5)
        work.put("ledger", b"20.00 in")
        work.put("mail", b"thank you", delay=1)
        work.commit()
    print("committed:", ps.queues(), "attempts:", payment.attempts)
