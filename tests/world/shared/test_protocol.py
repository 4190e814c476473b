"""The promises of `SharedPurgatory`, in random histories of processes, a store and a bad relay.

Each history is one seed of a world, so a failure's seed repeats it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from purgatory.core.errors import PurgatoryClosedError
from purgatory.shared.shared_purgatory import SharedPurgatory
from purgatory.virtual import World
from tests.world.shared.misbehaving_relay import Chances, Hub, MisbehavingRelay

KEYS = ("log:1", "log:2", "grün", "long" * 60)
RESYNC_S = 1.0
READ_S = 0.1
LATENCY_S = 0.05
BATCH = 3
BATCHES = -(-len(KEYS) // BATCH)
LIVE_S = RESYNC_S + 2 * BATCHES * READ_S + 0.1
"""In which a wait ends after the store has its value: all of one resync's read may have passed."""
STEPS = 40
SEEDS_OF_A_TEST = 30


@dataclass
class Store:
    """The truth: the value of each key, and since when it had which."""

    values: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    risen: dict[str, list[tuple[int, float]]] = field(
        default_factory=lambda: {key: [(0, 0.0)] for key in KEYS}
    )

    def rise(self, key: str, by: int) -> int:
        self.values[key] += by
        self.risen[key].append((self.values[key], time.monotonic()))
        return self.values[key]

    def reached_s(self, key: str, number: int) -> float | None:
        """When the value became `number` or more."""
        return next((at_s for value, at_s in self.risen[key] if value >= number), None)


@dataclass
class Wait:
    """One wait of a process."""

    process: Process
    key: str
    number: int
    is_condition: bool
    began_s: float
    task: asyncio.Task[None] | None = None

    def is_overdue(self) -> bool:
        """Whether it should have ended by now."""
        reached_s = self.process.store.reached_s(self.key, self.number)
        if reached_s is None:
            return False
        since_s = max(self.began_s, reached_s, self.process.cut_s)
        if not self.is_condition:
            since_s = max(since_s, self.process.bad_read_s)
        return time.monotonic() > since_s + LIVE_S

    async def run(self, timeout_s: float | None) -> None:
        purgatory, values = self.process.purgatory, self.process.store.values
        try:
            if self.is_condition:
                await purgatory.wait([self.key], lambda: values[self.key] >= self.number, timeout_s)
                assert values[self.key] >= self.number
            else:
                value = await purgatory.wait_for_threshold(self.key, self.number, timeout_s)
                had = {value for value, _ in self.process.store.risen[self.key]}
                assert value >= self.number
                assert value in had, f"{value} of {self.key} was never stored"
        except TimeoutError:
            assert not self.is_overdue() or self.process.is_closing, self
        except PurgatoryClosedError:
            assert self.process.is_closing


class Process:
    """A process: a purgatory, its relay, and its waits."""

    def __init__(self, hub: Hub, store: Store, name: str, resync: float) -> None:
        self.hub = hub
        self.store = store
        self.random = hub.random
        self.name = name
        self.relay = MisbehavingRelay(hub, name)
        self.purgatory = SharedPurgatory("Fetch", self.relay, self.read, resync, batch=BATCH)
        self.waits: list[Wait] = []
        self.bad_read_s = 0.0
        """When the last read that did not tell the truth ended."""
        self.bad_reads = 0.0
        self.cut_s = 0.0
        """When its connection was last cut, where nothing but messages wakes it."""
        self.is_closing = False

    def __repr__(self) -> str:
        return self.name

    async def read(self, keys: list[str]) -> Mapping[str, int | None]:
        assert 1 <= len(keys) <= BATCH
        slow_s = self.random.choice([0, 0, READ_S / 10, READ_S])
        values = self.store.values
        found: dict[str, int | None] = {key: values[key] for key in keys}
        if not self.random.random() < self.bad_reads:
            await asyncio.sleep(slow_s * 0.9)
            return found
        await asyncio.sleep(slow_s * 0.9)
        self.bad_read_s = time.monotonic()
        kind = self.random.choice(["failed", "partial", "None", "stale", "wrong", "no mapping"])
        if kind == "failed":
            raise ConnectionError("the store is down")
        if kind == "no mapping":
            return None  # type: ignore[return-value]
        key = self.random.choice(keys)
        if kind == "partial":
            del found[key]
        else:
            stale, _ = self.random.choice(self.store.risen[key])
            found[key] = {"None": None, "stale": stale, "wrong": "7"}[kind]  # type: ignore[assignment]
        return found

    def wait(self, key: str, number: int, timeout_s: float | None, is_condition: bool) -> Wait:
        wait = Wait(self, key, number, is_condition, time.monotonic())
        wait.task = asyncio.create_task(wait.run(timeout_s))
        self.waits.append(wait)
        return wait

    def check(self) -> None:
        self.purgatory._check()
        if self.relay.state.name == "live":
            assert self.relay._is_connected
        pending = []
        for wait in self.waits:
            assert wait.task is not None
            if not wait.task.done():
                assert not wait.is_overdue(), f"{wait} still waits"
                pending.append(wait)
            elif not wait.task.cancelled():
                wait.task.result()
        self.waits = pending

    async def close(self) -> None:
        self.is_closing = True
        pending = self.random.choice(["fail", "expire", "leave"])
        await self.purgatory.aclose(pending)  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        self.check()
        assert not self.waits
        self.assert_empty()

    def assert_empty(self) -> None:
        purgatory, relay = self.purgatory, self.relay
        assert not (purgatory._waits or purgatory._conditions or purgatory._unread)
        assert not purgatory._tasks
        assert not purgatory.local.core._state.values
        assert not (purgatory.local.watched or purgatory.local.num_delayed)
        assert not (relay._watched or relay._keys or relay._unsent)
        assert not (relay._receivers or relay._tasks or relay.subscribed)
        assert relay.state.name == "closed"
        assert relay.times_closed == 1
        assert relay not in self.hub.connected

    def kill(self) -> None:
        """End it as SIGKILL does: nothing is closed."""
        self.is_closing = True
        tasks = [wait.task for wait in self.waits]
        tasks += [*self.purgatory._tasks, *self.relay._tasks, self.relay._catching_up]
        for task in tasks:
            if task is not None:
                task.cancel()


class History:
    """One history: what a seed lets happen.

    Args:
        resync: if it is long, only messages and connections that begin wake anybody, so no
            message is lost; connections are cut all the same.
    """

    def __init__(self, world: World, resync: float = RESYNC_S) -> None:
        self.resync = resync
        self.is_reliable = resync > RESYNC_S
        self.random = world.random
        self.hub = Hub(self.random)
        self.store = Store()
        self.processes: list[Process] = []
        self.started = 0
        self.advances: set[asyncio.Task[int]] = set()

    async def run(self) -> None:
        random, hub = self.random, self.hub
        hub.chances = Chances(
            loss=random.choice([0, 0.3, 1]),
            double=random.choice([0, 0.3]),
            refusal=random.choice([0, 0.1, 0.4]),
            latency_s=random.choice([0.001, LATENCY_S, 0.5]),
        )
        bad_reads = random.choice([0, 0, 0.2])
        if self.is_reliable:
            hub.chances, bad_reads = Chances(double=0.1, latency_s=LATENCY_S), 0
        for _ in range(2):
            await self.start()
        actions = [self.wait] * 6 + [self.rise] * 4 + [self.cancel, self.cut, self.turn, self.start]
        actions += [self.end] * (random.random() < 0.5)
        for _ in range(STEPS):
            for process in self.processes:
                process.bad_reads = bad_reads
            await random.choice(actions)()
            await asyncio.sleep(random.choice([0, 0, 0.01, 0.1, 0.5]))
            for process in self.processes:
                process.check()
        await self.come_back()
        await self.close()

    async def start(self) -> None:
        if len(self.processes) < 4:
            self.started += 1
            process = Process(self.hub, self.store, f"process {self.started}", self.resync)
            await process.purgatory.__aenter__()
            self.processes.append(process)

    async def end(self) -> None:
        if len(self.processes) > 1:
            process = self.processes.pop(
                self.random.randrange(self.is_reliable, len(self.processes))
            )
            if self.random.random() < 0.5:
                process.kill()
            else:
                await process.close()

    async def wait(self) -> None:
        process, key = self.random.choice(self.processes), self.random.choice(KEYS)
        number = self.store.values[key] + self.random.choice([0, 1, 1, 2, 5])
        timeout_s = self.random.choice([None, 0.05, 1.0, 5.0, 20.0])
        process.wait(key, number, timeout_s, self.random.random() < 0.3)
        if self.is_reliable and self.random.random() < 0.5:  # while it subscribes, or reads
            await asyncio.sleep(self.random.uniform(0, 3 * LATENCY_S))
            await self.rise(key)

    async def cancel(self) -> None:
        waits = self.random.choice(self.processes).waits
        if waits:
            task = self.random.choice(waits).task
            assert task is not None
            task.cancel()

    async def rise(self, key: str | None = None) -> None:
        key = key or self.random.choice(KEYS)
        value = self.store.rise(key, self.random.randint(1, 3))
        if self.is_reliable:
            await self.processes[0].purgatory.advance(key, value)  # which is never cut
        elif self.random.random() < 0.7:  # or else another program did it
            self.advance(key, value)

    def advance(self, key: str, value: int) -> None:
        purgatory = self.random.choice(self.processes).purgatory
        call = purgatory.advance(key, value)
        if self.random.random() < 0.3:
            call.close()
            call = purgatory.notify(key)
        task = asyncio.create_task(call)
        self.advances.add(task)
        task.add_done_callback(self.advances.discard)

    async def cut(self) -> None:
        if self.is_reliable:
            for process in self.processes[1:2]:
                process.relay.cut()
                process.cut_s = time.monotonic()
        elif self.random.random() < 0.5:
            self.random.choice(self.processes).relay.cut()
        else:
            self.hub.cut_all()

    async def turn(self) -> None:
        """The hub goes down, or comes back."""
        if self.is_reliable:
            return
        self.hub.is_down = not self.hub.is_down
        if self.hub.is_down:
            self.hub.cut_all()

    async def come_back(self) -> None:
        """When the hub works again, all hear of all, on keys that they watched before, too."""
        for process in self.processes:
            process.bad_reads = 0
        higher = {key: value + 10 for key, value in self.store.values.items()}
        waits = [
            process.wait(key, number, None, is_condition=False)
            for process in self.processes
            for key, number in higher.items()
        ]
        self.hub.chances = Chances(latency_s=LATENCY_S)
        self.hub.is_down = False
        for process in self.processes:
            for _ in range(200):
                if process.relay.state.name == "live":
                    break
                await asyncio.sleep(0.1)
            assert process.relay.state.name == "live"
            process.check()
        await asyncio.sleep(2)  # what took long before, too
        for process in self.processes:
            assert process.relay.subscribed == process.relay.watched()
        sender = self.random.choice(self.processes).purgatory
        for key in KEYS:
            await sender.advance(key, self.store.rise(key, 10))
        await asyncio.sleep(2 * LATENCY_S + 0.01)
        for wait in waits:
            assert wait.task is not None
            assert wait.task.done(), f"no message reached {wait}"

    async def close(self) -> None:
        for process in self.processes:
            for wait in process.waits[::2]:
                assert wait.task is not None
                wait.task.cancel()
            await asyncio.sleep(0.5)
            process.check()
            assert process.relay.subscribed == process.relay.watched()
            await process.close()
        await asyncio.sleep(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not self.hub.connected


@pytest.mark.parametrize("first", range(0, 5 * SEEDS_OF_A_TEST, SEEDS_OF_A_TEST))
@pytest.mark.parametrize("resync", [RESYNC_S, 86_400.0])
def test_promises_hold_in_random_histories(first: int, resync: float) -> None:
    for seed in range(first, first + SEEDS_OF_A_TEST):
        with World(seed) as world:
            try:
                world.run(History(world, resync).run())
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
