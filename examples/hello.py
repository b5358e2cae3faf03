"""The shortest way: send, receive, settle."""

import sys

import penstock

with penstock.open(sys.argv[1] if len(sys.argv) > 1 else ":memory:") as ps:
    orders = ps.queue("orders")
    orders.send(b"two teas", attributes={"table": 7})
    while message := orders.receive(wait=1):
        with message:  # acks when the block ends well, releases with the error when it does not
            print(message.body, message.attributes, message.attempts)
