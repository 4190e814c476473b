"""A write that is answered once 2 of 3 replicas have it, or that says at the timeout which did not.

    python docs/examples/quorum_write.py

The replicas are coroutines here, one of them slow. In a server they would be connections.
"""

from __future__ import annotations

import asyncio

from purgatory import AsyncPurgatory, DelayedOperation, Outcome

REPLICAS = ("north", "south", "west")


class QuorumWrite(DelayedOperation):
    """Waits until ``needed`` replicas have acknowledged the record at ``offset``."""

    def __init__(self, offset: int, acknowledged: dict[str, int], delay_ms: int, needed: int = 2):
        super().__init__(delay_ms)
        self.offset = offset
        self.acknowledged = acknowledged  # replica -> how many records it has
        self.needed = needed
        self.answer = ""

    def stored_on(self) -> list[str]:
        return [name for name in REPLICAS if self.acknowledged[name] > self.offset]

    def try_complete(self) -> bool:
        return len(self.stored_on()) >= self.needed and self.force_complete()

    def on_complete(self) -> None:
        stored = self.stored_on()
        missing = [name for name in REPLICAS if name not in stored]
        if self.outcome is Outcome.COMPLETED:
            self.answer = f"record {self.offset} stored on {', '.join(stored)}"
        else:
            self.answer = f"record {self.offset} NOT acknowledged by {', '.join(missing)} in time"


class Cluster:
    """Three replicas that copy the log with a delay of their own."""

    def __init__(self, purgatory: AsyncPurgatory, delays_s: dict[str, float]) -> None:
        self.purgatory = purgatory
        self.delays_s = delays_s
        self.acknowledged = dict.fromkeys(REPLICAS, 0)
        self.end = 0

    async def write(self, timeout_ms: int) -> str:
        write = QuorumWrite(self.end, self.acknowledged, timeout_ms)
        self.end += 1
        async with asyncio.TaskGroup() as replication:
            for name in REPLICAS:
                replication.create_task(self.copy(name, self.end))
            await self.purgatory.submit(write, [write.offset])
        return write.answer

    async def copy(self, name: str, end: int) -> None:
        await asyncio.sleep(self.delays_s[name])
        self.acknowledged[name] = max(end, self.acknowledged[name])
        self.purgatory.notify(end - 1)  # whoever waits for that record looks again


async def main() -> None:
    async with AsyncPurgatory("Produce") as purgatory:
        cluster = Cluster(purgatory, {"north": 0.01, "south": 0.03, "west": 0.4})
        print(await cluster.write(timeout_ms=200))
        cluster.delays_s["south"] = 0.4
        print(await cluster.write(timeout_ms=200))


if __name__ == "__main__":
    asyncio.run(main())
