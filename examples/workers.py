"""Threads that share the work of a queue: failures are retried, and what fails three times is looked at by a human."""

import sys
import threading

import penstock


def work(ps: penstock.Penstock, name: str) -> None:
    """Take orders until there are none for a while."""
    with ps.session(name) as session:
        orders = session.queue("orders")
        while message := orders.receive(wait=0.3):
            try:
                with message:
                    brew(message.text)
            except ValueError:
                continue  # the message has gone back, with the reason


def brew(drink: str) -> None:
    """Fails for some."""
    if drink == "decaf":
        raise ValueError("we do not do that here")


def main(path: str) -> None:
    """Serve ten drinks with three workers."""
    with penstock.open(path) as ps:
        ps.create_queue("orders", max_receives=3)
        ps.queue("orders").send_many(["tea", "coffee", "cocoa"] * 3 + ["decaf"])
        workers = [threading.Thread(target=work, args=(ps, f"barista-{number}")) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for dead in ps.queue("orders.dead").peek():
            print(dead.text, [f"{failure.session}: {failure.error}" for failure in dead.history])
        print("served", ps.queue("orders").stats().channels["main"].acked)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ":memory:")
