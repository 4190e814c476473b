"""Small asyncio programs with one bug each, which first in, first out does not show.

The programs use only asyncio: any tool runs them. Each is a coroutine function that raises
`AssertionError` in the orders of its tasks in which the bug shows, and returns in the others.

    python tests/benchmarks/world_programs.py simloom 10 16     # ten searches of 16 programs
    python tests/benchmarks/world_programs.py simloom of 400    # the bugs in 400 seeds of each
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from purgatory.virtual import World


async def _steps(count: int) -> None:
    """Take so many steps, as a call over a network does."""
    for _ in range(count):
        await asyncio.sleep(0)


async def lost_update() -> None:
    """Two read a balance and write it back; the second begins when the first should be done."""
    balance = 0

    async def deposit(after: int) -> None:
        nonlocal balance
        await _steps(after)
        before = balance
        await _steps(2)
        balance = before + 1

    await asyncio.gather(deposit(0), deposit(3))
    assert balance == 2


async def double_booking() -> None:
    """A seat is free when it is looked at, and taken when it is booked."""
    seats: dict[str, str] = {}
    refused: list[str] = []

    async def book(guest: str, after: int) -> None:
        await _steps(after)
        if "12A" in seats:
            refused.append(guest)
            return
        await _steps(1)  # the payment
        seats["12A"] = guest

    await asyncio.gather(book("ann", 0), book("bob", 3), book("cid", 6))
    assert len(refused) == 2


async def missed_wakeup() -> None:
    """A consumer looks at its queue, and then clears the event that tells of more."""
    queue: list[int] = []
    more = asyncio.Event()
    taken: list[int] = []

    async def consume() -> None:
        while len(taken) < 3:
            while queue:
                taken.append(queue.pop())
            await _steps(1)
            more.clear()
            if len(taken) < 3:
                await more.wait()

    async def produce() -> None:
        for number in range(3):
            await _steps(4)
            queue.append(number)
            more.set()

    consuming = asyncio.create_task(consume())
    await produce()
    with suppress(TimeoutError):
        await asyncio.wait_for(consuming, 10)
    assert len(taken) == 3


async def two_leaders() -> None:
    """A voter says yes, and notes it only when its disk has: in between it says yes again."""
    voted: dict[int, str] = {}
    leaders: list[str] = []

    async def vote(voter: int, candidate: str) -> bool:
        granted = voted.get(voter, candidate) == candidate
        await _steps(1)  # its disk
        if granted:
            voted[voter] = candidate
        return granted

    async def campaign(candidate: str, after: int) -> None:
        await _steps(after)
        votes = [await vote(voter, candidate) for voter in range(3)]
        if sum(votes) >= 2:
            leaders.append(candidate)

    await asyncio.gather(campaign("a", 0), campaign("b", 5))
    assert len(leaders) == 1


async def lease_without_fencing() -> None:
    """The holder of a lease goes on writing after it has expired, while another holds it."""
    holder: str | None = None
    written: list[str] = []

    async def expire() -> None:
        nonlocal holder
        await _steps(8)
        holder = None

    async def work(name: str, after: int) -> None:
        nonlocal holder
        await _steps(after)
        if holder is None:
            holder = name
            for _ in range(2):
                await _steps(2)
                written.append(name)

    await asyncio.gather(work("a", 0), expire(), work("b", 9))
    assert written in (["a", "a", "b", "b"], ["a", "a"])


async def retry_without_idempotence() -> None:
    """A call that takes as long as its time-out is applied, and made again."""
    applied = 0

    async def pay() -> None:
        nonlocal applied
        await asyncio.sleep(1)
        applied += 1
        await _steps(1)

    for _ in range(2):
        try:
            await asyncio.wait_for(pay(), 1.000_001)
        except TimeoutError:
            continue
        break
    acknowledged = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, acknowledged.set_result, None)
    sends = 0
    while not acknowledged.done():
        sends += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(acknowledged), 1)
    assert (applied, sends) == (1, 1)


async def cancelled_write() -> None:
    """A task that is cancelled between two writes leaves half of them."""
    account = {"from": 10, "to": 0}

    async def transfer() -> None:
        account["from"] -= 5
        await _steps(1)
        account["to"] += 5

    moving = asyncio.create_task(transfer())

    async def stop() -> None:
        await _steps(3)
        moving.cancel()

    await asyncio.gather(stop(), moving, return_exceptions=True)
    assert sum(account.values()) == 10


async def stale_cache() -> None:
    """A reader fills the cache with what it read before the writer cleared it."""
    database, cache = {"price": 1}, {}

    async def read() -> None:
        if "price" not in cache:
            price = database["price"]
            await _steps(1)
            cache["price"] = price

    async def write() -> None:
        await _steps(3)
        database["price"] = 2
        cache.pop("price", None)

    await asyncio.gather(read(), write())
    await read()
    assert cache["price"] == 2


async def cache_stampede() -> None:
    """All who miss the same entry compute it."""
    cache: dict[str, int] = {}
    computed = 0

    async def get(after: int) -> None:
        nonlocal computed
        await _steps(after)
        if "page" not in cache:
            await _steps(1)
            computed += 1
            cache["page"] = 1

    await asyncio.gather(*(get(3 * number) for number in range(4)))
    assert computed == 1


async def dual_write() -> None:
    """Two writers write to a database and to an index, which end with different values."""
    stores: dict[str, int] = {}

    async def write(value: int, after: int) -> None:
        await _steps(after)
        stores["database"] = value
        await _steps(1)
        stores["index"] = value

    await asyncio.gather(write(1, 0), write(2, 3))
    assert stores["database"] == stores["index"]


async def outbox_that_reorders() -> None:
    """Two relays take messages from an outbox in order, and publish them as they can."""
    outbox, published = [1, 2, 3, 4], []

    async def relay() -> None:
        while outbox:
            message = outbox.pop(0)
            await _steps(1)
            published.append(message)

    await asyncio.gather(relay(), relay())
    assert published == sorted(published)


async def saga_without_compensation() -> None:
    """A trip that is cancelled while its hotel is booked keeps it."""
    booked: set[str] = set()
    cancelled = False

    async def book() -> None:
        for part in ("flight", "hotel"):
            if cancelled:
                booked.discard("flight")
                return
            await _steps(1)
            booked.add(part)

    async def cancel() -> None:
        nonlocal cancelled
        await _steps(4)
        if booked != {"flight", "hotel"}:
            cancelled = True

    await asyncio.gather(book(), cancel())
    assert not cancelled or not booked


async def close_while_connecting() -> None:
    """A pool that is closed while a connection is made never closes that one."""
    opened: set[int] = set()
    pool: list[int] = []

    async def connect() -> None:
        await _steps(2)
        opened.add(1)
        pool.append(1)

    async def close() -> None:
        await _steps(4)
        while pool:
            opened.discard(pool.pop())

    await asyncio.gather(connect(), close())
    assert not opened


async def slow_replica() -> None:
    """A read that begins before ten writes, and ends after them, takes them for one."""
    log: list[int] = []
    seen: list[int] = []

    async def follow() -> None:
        begin = len(log)
        await _steps(1)
        seen.append(len(log) - begin)

    async def write() -> None:
        for number in range(10):
            log.append(number)
            await _steps(1)

    await asyncio.gather(follow(), write())
    assert seen[0] < 8


async def wrong_quorum() -> None:
    """A write waits for two of three replicas, and a read asks one."""
    replicas: set[str] = set()

    async def store(replica: str) -> None:
        await _steps(2)
        replicas.add(replica)

    storing = [asyncio.create_task(store(replica)) for replica in "abc"]
    while len(replicas) < 2:
        await _steps(1)
    assert "c" in replicas
    await asyncio.gather(*storing)


async def unbounded_reconnect() -> None:
    """A client that is refused connects again at once, however long the server is away."""
    is_up = False
    refused = 0

    async def start() -> None:
        nonlocal is_up
        await _steps(5)
        is_up = True

    async def connect() -> None:
        nonlocal refused
        while not is_up:
            refused += 1
            await _steps(1)

    await asyncio.gather(start(), connect())
    assert refused < 12


PROGRAMS: list[Callable[[], Coroutine[Any, Any, None]]] = [
    lost_update,
    double_booking,
    missed_wakeup,
    two_leaders,
    lease_without_fencing,
    retry_without_idempotence,
    cancelled_write,
    stale_cache,
    cache_stampede,
    dual_write,
    outbox_that_reorders,
    saga_without_compensation,
    close_while_connecting,
    slow_replica,
    wrong_quorum,
    unbounded_reconnect,
]


# The searches. A tool is imported where it is used: each runs in a Python that has it.

MAX_RUNS = 3_000


class Found(NamedTuple):
    """The cost of one search.

    Args:
        runs: until the bug showed.
        processor_s: likewise.
        size: what was left after shrinking, as deviations from first in, first out, and faults;
            None: the bug did not show.
    """

    runs: int
    processor_s: float
    size: int | None


Program = Callable[[], Coroutine[Any, Any, None]]


def search_worlds(
    name: str,
    run: Callable[[World], object],
    start: int,
    schedule: str,
    max_runs: int = MAX_RUNS,
    shrinks: bool = True,
) -> Found:
    """Search in worlds, from the seed ``start`` on.

    Args:
        run: raises `AssertionError` where the bug shows.
    """
    from purgatory.virtual import World
    from purgatory.virtual.failure_report import RepeatedTest, WorldFailure, world_failure
    from purgatory.virtual.shrinking import Shrinking

    def attempt(test: RepeatedTest) -> WorldFailure | None:
        with World(
            test.seed,
            without=test.without,
            plain_network=test.plain_network,
            schedule=test.schedule,
        ) as world:
            try:
                run(world)
            except AssertionError as error:
                return world_failure(world, test, error)
        return None

    begun = time.process_time()
    for number in range(max_runs):
        failure = attempt(RepeatedTest(name, start + number, schedule=schedule))
        if failure is not None:
            took_s = time.process_time() - begun
            shrinking = Shrinking(failure, attempt)
            if shrinks:
                shrinking.shrink()
            smallest = shrinking.smallest
            faults = smallest.planned_faults - len(smallest.test.without)
            return Found(number + 1, took_s, faults + len(smallest.deviations))
    return Found(max_runs, time.process_time() - begun, None)


def search_by_world(program: Program, start: int, max_runs: int, shrinks: bool) -> Found:
    """Search with `World`."""

    def run(world: World) -> None:
        world.run(program())

    return search_worlds(program.__name__, run, start, "mixed", max_runs, shrinks)


def search_by_simloom(program: Program, start: int, max_runs: int, shrinks: bool) -> Found:
    """Search with simloom, as its README does."""
    import simloom  # type: ignore[import-not-found]

    begun = time.process_time()
    explored = simloom.explore(program, runs=max_runs, start_seed=start)
    took_s = time.process_time() - begun
    if explored.first_failure is None:
        return Found(max_runs, took_s, None)
    size = simloom.shrink(program, explored.first_failure).deviations if shrinks else 0
    return Found(explored.runs, took_s, size)


def search_by_simloop(program: Program, start: int, max_runs: int, shrinks: bool) -> Found:
    """Search with simloop, as its README does."""
    import simloop  # type: ignore[import-not-found]

    begun = time.process_time()
    report = simloop.explore(program, range(start, start + max_runs))
    took_s = time.process_time() - begun
    if report is None:
        return Found(max_runs, took_s, None)
    runs = report.seed - start + 1
    if not shrinks:
        return Found(runs, took_s, 0)
    shrunk = simloop.explore(program, [report.seed], shrink=True)
    kept = None if shrunk is None or shrunk.shrunk is None else len(shrunk.shrunk.kept)
    return Found(runs, took_s, kept)


SEARCHES: dict[str, Callable[[Program, int, int, bool], Found]] = {
    "world": search_by_world,
    "simloom": search_by_simloom,
    "simloop": search_by_simloop,
}


def count_failures(tool: str, program: Program, runs: int) -> int:
    """Return in how many of the first seeds the bug shows."""
    failures = start = 0
    while start < runs:
        found = SEARCHES[tool](program, start, runs - start, False)
        failures += found.size is not None
        start += found.runs
    return failures


def main() -> None:
    """Search each program as often as asked, and print what that took as JSON.

    Arguments: the tool, how often, and the number of programs; or the tool, "of", and a number of
    seeds, in how many of which the bug shows.
    """
    tool, times, count = sys.argv[1:]
    for program in PROGRAMS[: None if times == "of" else int(count)]:
        if times == "of":
            line: dict[str, object] = {"failures": count_failures(tool, program, int(count))}
        else:
            search = SEARCHES[tool]
            starts = (10_000 * number for number in range(int(times)))
            line = {"found": [search(program, start, MAX_RUNS, True) for start in starts]}
        print(json.dumps({"program": program.__name__, **line}), flush=True)


if __name__ == "__main__":
    main()
