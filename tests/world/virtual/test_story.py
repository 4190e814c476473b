"""The story of a failure: its steps, each with its line and the step that woke it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from purgatory.virtual import World, WorldError
from tests.world.virtual.pytest_run import run_pytest


def _lines(story: str) -> list[str]:
    """Its steps, each in one line with its source and its messages."""
    return re.sub(r"\n {22}(?!\.\.\.)", " | ", story).splitlines()[1:]


def _woken_by(line: str) -> int | None:
    found = re.search(r"<- (\d+)", line)
    return int(found[1]) if found else None


def test_step_has_its_line_and_its_cause() -> None:
    event = asyncio.Event

    async def waits(opened: asyncio.Event) -> None:
        await opened.wait()

    async def opens(opened: asyncio.Event) -> None:
        await asyncio.sleep(5)
        opened.set()

    async def main() -> None:
        opened = event()
        waiting = asyncio.create_task(waits(opened))
        opening = asyncio.create_task(opens(opened))
        await waiting
        await opening

    with World(story=True) as world:
        world.run(main())
        lines = _lines(world.story)
    assert [re.sub(r" at \S+", "", line.split("s  ", 1)[1]) for line in lines] == [
        "main() #1 | async def main() -> None:",
        "waits() #2  <- 1 | async def waits(opened: asyncio.Event) -> None:",
        "opens() #3  <- 1 | async def opens(opened: asyncio.Event) -> None:",
        "opens() #3  <- 3, 5 s later | await asyncio.sleep(5)",
        "waits() #2  <- 4 | await opened.wait()",
        "main() #1  <- 5 | await waiting",
    ]
    assert all("at test_story.py:" in line for line in lines)


def test_story_has_only_messages_before_the_last_step() -> None:
    async def serve() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        await (await asyncio.start_server(handle, port=80)).serve_forever()

    async def ask(name: str) -> bytes:
        reader, writer = await asyncio.open_connection(name, 80)
        writer.write(b"hello\n")
        answer = await reader.readline()
        writer.close()
        return answer

    async def main(world: World) -> None:
        for name in ("left", "right"):
            world.host(name, serve)
        await asyncio.sleep(1)
        asyncio.create_task(ask("right"))  # noqa: RUF006
        assert await ask("left") == b"hello\n"

    with World(story=True) as world:
        world.run(main(world))
        lines = _lines(world.story)
    received = [line for line in lines if "client:20000 > left" in line or "left: handle" in line]
    sent = [line for line in lines if "left > client" in line]
    assert received and sent
    # The other host's own lines are in the story; its messages did not happen before the end.
    assert any("right: handle()" in line for line in lines)
    assert not [line for line in lines if "data right > client" in line]


def test_a_fault_is_a_step() -> None:
    async def run() -> None:
        await asyncio.sleep(100)

    async def main(world: World) -> None:
        host = world.host("billing", run)
        world.at("5s", host.crash)
        await asyncio.sleep(10)

    with World(story=True) as world:
        world.run(main(world))
        assert any(
            "fault Host.crash(); host billing: crash" in line for line in _lines(world.story)
        )


def test_story_has_the_steps_around_an_old_fault() -> None:
    async def run() -> None:
        while True:
            await asyncio.sleep(1)

    async def main(world: World) -> None:
        host = world.host("billing", run)
        world.at("50.5s", host.crash)
        world.at("60s", host.restart)
        await asyncio.sleep(200.5)

    with World(story=True) as world:
        world.run(main(world))
        lines = _lines(world.story)
    crash = next(n for n, line in enumerate(lines) if "host billing: crash" in line)
    assert "50.000000 s  billing: Host._run() billing" in lines[crash - 1]
    assert "60.000000 s  fault Host.restart(); host billing: restart" in lines[crash + 1]
    assert "... 48 times more, until 49 s" in lines[crash - 2]
    assert "... 138 times more, until 199 s" in lines[-3]
    assert "200.500000 s  main() #1" in lines[-1]


def test_repeats_of_several_steps_are_folded_in_a_story() -> None:
    async def tick() -> None:
        while True:
            await asyncio.sleep(1)

    async def main(world: World) -> None:
        for name in ("left", "right"):
            world.host(name, tick)
        await asyncio.sleep(5_000.5)

    with World(story=True) as world:
        world.run(main(world))
        lines = _lines(world.story)
    [folded] = [line.strip() for line in lines if "..." in line]
    assert folded == "... these 2 steps 4,998 times more, until 4999 s"
    assert len(lines) < 15


def test_story_has_the_steps_around_each_of_many_faults() -> None:
    async def run() -> None:
        while True:
            await asyncio.sleep(1)

    async def main(world: World) -> None:
        host = world.host("billing", run)
        for second in range(10, 80, 20):
            world.at(f"{second}.5s", host.crash)
            world.at(f"{second + 10}.5s", host.restart)
        await asyncio.sleep(200)

    with World(story=True) as world:
        world.run(main(world))
        lines = _lines(world.story)
    assert sum("host billing: crash" in line for line in lines) == 4
    assert sum("host billing: restart" in line for line in lines) == 4
    before = [lines[n - 1] for n, line in enumerate(lines) if "billing: crash" in line]
    assert all(" billing: " in line for line in before)


def test_delayed_fetch_is_woken_by_its_produce() -> None:
    aiokafka: Any = pytest.importorskip("aiokafka")

    async def main(bootstrap: str) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
        consumer = aiokafka.AIOKafkaConsumer("orders", bootstrap_servers=bootstrap)
        async with producer, consumer:
            record = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.1)
            await producer.send_and_wait("orders", b"x")
            await record

    with World(story=True) as world:
        cluster = world.cluster(topics=["orders"])
        assert cluster.bootstrap_servers
        world.run(main(cluster.bootstrap_servers))
        lines = _lines(world.loop.story.text(200) if world.loop.story else "")
    produces = [n for n, line in enumerate(lines, 1) if "Produce v" in line]
    [fetched] = [line for line in lines if "Fetch response" in line and "Produce" not in line][-1:]
    assert _woken_by(fetched) in produces


def test_story_does_not_change_the_run() -> None:
    def digest(story: bool) -> str:
        async def main() -> None:
            event = asyncio.Event()
            tasks = [asyncio.create_task(event.wait()) for _ in range(5)]
            await asyncio.sleep(1)
            event.set()
            await asyncio.gather(*tasks)

        with World(7, schedule="random", story=story) as world:
            world.run(main())
            return world.digest

    assert digest(True) == digest(False)


def test_story_of_a_world_without_one_raises_with_advice() -> None:
    with World() as world:
        world.pass_time("1s")
        with pytest.raises(WorldError, match=r"World\(\.\.\., story=True\)"):
            _ = world.story
    with World(story=True) as empty:
        assert empty.story == "no step was taken"


@pytest.mark.slow
def test_last_steps_are_kept_and_formatted_in_linear_time() -> None:
    async def spin() -> None:
        for _ in range(60_000):
            await asyncio.sleep(0.001)

    with World(story=True) as world:
        world.run(spin())
        lines = _lines(world.story)
    assert [re.split(r" s\b", line.strip())[0] for line in lines][1:] == [
        "... 24,998 times more, until 59.999",
        "2     60.000000",
    ]


_TESTS = """
import asyncio

import pytest


@pytest.mark.virtual(schedules=200)
async def test_the_deposit_is_seen(world):
    account, seen = {"balance": 0}, []

    async def deposit():
        account["balance"] += 1

    async def audit():
        seen.append(account["balance"])

    await asyncio.gather(deposit(), audit())
    assert seen == [1]


@pytest.mark.virtual(seeds=1)
async def test_a_property(world):
    leaders = set()
    world.always("one leader", lambda: len(leaders) < 2)

    async def lead(name):
        leaders.add(name)

    await asyncio.gather(lead("a"), lead("b"))
"""


@pytest.mark.slow
def test_failed_test_reports_the_story_of_its_smallest_failure(tmp_path: Path) -> None:
    status, said = run_pytest(tmp_path, text=_TESTS)
    assert status == 1
    first, second = (part.split("____")[0] for part in said.split("- virtual world, story -")[1:3])
    audit, deposit = first.index(" audit() #3 at"), first.index(" deposit() #2 at")
    assert audit < deposit
    assert "choice 0: audit() #3 at test_it.py:14 before deposit() #2" in first
    assert first.count("async def") == 3
    last = _lines(second.partition("=====")[0].strip())[-1]
    assert "lead() #3" in last
    assert "story" not in run_pytest(tmp_path, "--virtual-no-shrink", text=_TESTS)[1]


@pytest.mark.slow
def test_ctrl_c_while_the_story_is_recorded_keeps_the_failure(tmp_path: Path) -> None:
    text = """
import os
import signal

async def test_it(world):
    if world.loop.story is not None:
        os.kill(os.getpid(), signal.SIGINT)
    assert False, "the bug"

def test_later():
    pass
"""
    status, said = run_pytest(tmp_path, text=text)
    assert status == 2
    assert "the bug" in said
    assert "1 failed" in said
    assert "interrupted while the story of a failure was recorded" in said
