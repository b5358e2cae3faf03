"""The same API for asyncio: producers and a consumer in one loop."""

import asyncio
import sys

import penstock


async def main(path: str) -> None:
    """Send from many tasks at once; receive in runs."""
    async with penstock.open_async(path) as ps:
        readings = ps.queue("readings")
        await asyncio.gather(*(readings.send(f"sensor {number}") for number in range(100)))
        total = 0
        while batch := await readings.receive_batch(30):
            total += len(batch)
            await batch.ack()
        print("read", total)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ":memory:"))
