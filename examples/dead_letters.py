"""What fails for good is kept with the reasons, and can be brought back."""

import sys

import penstock

with penstock.open(sys.argv[1] if len(sys.argv) > 1 else ":memory:") as ps:
    orders = ps.create_queue("orders", max_receives=2)
    orders.send(b"a unicorn")
    while message := orders.receive():
        message.release(error="out of stock")

    dead = ps.queue("orders.dead").receive()
    print(dead.body, [failure.error for failure in dead.history])
    dead.release()

    task = ps.redrive("orders.dead", error="stock").wait(5)
    print(task.status, task.moved)
    while message := orders.receive(wait=1):
        with message:
            print(message.body, "attempt", message.attempts)
