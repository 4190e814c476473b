"""The story of a run as a document: the steps of each node, messages in transit, and waits."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from purgatory.virtual import World, WorldError
from tests.world.virtual.pytest_run import run_pytest

Document = dict[str, Any]


def saved(world: World, folder: Path, **head: str) -> Document:
    """The document of a world's story."""
    world.save_story(folder / "it.story.json", **head)
    document: Document = json.loads((folder / "it.story.json").read_text())
    return document


def waiting_at(document: Document, index: int) -> list[str]:
    """The lines at which the program's tasks wait after a step."""
    return [
        wait["place"]["source"]
        for wait in document["waits"]
        if wait["from"] <= index and (wait["until"] is None or index < wait["until"])
    ]


def own_steps(document: Document) -> list[int]:
    return [index for index, step in enumerate(document["steps"]) if step["place"]]


async def serve() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # where a segment is lost
            writer.write(await reader.readline())
        await asyncio.sleep(60)
        writer.close()

    await (await asyncio.start_server(handle, port=80)).serve_forever()


def test_wait_lasts_from_a_step_of_its_task_to_the_next(tmp_path: Path) -> None:
    async def opens(opened: asyncio.Event) -> None:
        await asyncio.sleep(5)
        opened.set()

    async def main() -> None:
        opened = asyncio.Event()
        task = asyncio.create_task(opens(opened))
        await opened.wait()
        await task

    with World(story=True) as world:
        world.run(main())
        document = saved(world, tmp_path, title="a title")
    assert document["title"] == "a title"
    assert document["nodes"] == ["client"]
    begin, begun, opened, _ = own_steps(document)
    assert [document["steps"][index]["name"] for index in (begin, begun, opened)] == [
        "main() #1",
        "opens() #2",
        "opens() #2",
    ]
    assert document["steps"][begun]["cause"] == begin
    assert waiting_at(document, begin) == [
        "async def opens(opened: asyncio.Event) -> None:",
        "await opened.wait()",
    ]
    assert waiting_at(document, begun) == ["await asyncio.sleep(5)", "await opened.wait()"]
    assert waiting_at(document, opened) == ["await opened.wait()"]
    assert waiting_at(document, len(document["steps"]) - 1) == []


def test_task_that_never_resumes_waits_to_the_end(tmp_path: Path) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        asyncio.create_task(never())  # noqa: RUF006
        await asyncio.sleep(1)

    with World(story=True) as world:
        world.run(main())
        document = saved(world, tmp_path)
    assert waiting_at(document, len(document["steps"]) - 1) == ["await asyncio.Event().wait()"]


def test_message_is_in_transit_from_its_send_to_its_arrival(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        world.host("server", serve)
        world.network.link("client", "server").latency("3ms")
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("server", 80)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.write(b"never read\n")
        writer.close()

    with World(story=True) as world:
        world.run(main(world))
        document = saved(world, tmp_path)
    assert document["nodes"] == ["client", "server"]
    steps = document["steps"]
    asked, answered, unread, end = document["messages"]
    assert [message["text"] for message in (asked, answered, unread, end)] == [
        "6 bytes",
        "6 bytes",
        "11 bytes",
        "end of the stream",
    ]
    assert asked["frames"] == [{"name": "", "records": [r"hello\n"]}]
    assert (asked["source"], asked["target"]) == ("client", "server")
    assert steps[asked["ended"]]["at_us"] - steps[asked["sent"]]["at_us"] == 3_000
    assert steps[asked["ended"]]["node"] == "server"
    assert steps[answered["sent"]]["node"] == "server"
    assert asked["outcome"] == answered["outcome"] == "arrived"
    assert (unread["ended"], unread["outcome"]) == (None, None)


def test_crash_drops_messages_in_transit_and_ends_waits(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        server = world.host("server", serve)
        await asyncio.sleep(1)
        _, writer = await asyncio.open_connection("server", 80)
        writer.write(b"hello\n")
        server.crash()
        await asyncio.sleep(1)
        server.restart()
        await asyncio.sleep(1)
        server.pause()
        await asyncio.sleep(1)

    with World(story=True) as world:
        world.run(main(world))
        document = saved(world, tmp_path)
    steps, [down, paused] = document["steps"], document["bands"]
    assert (down["kind"], down["nodes"], down["text"]) == ("down", ["server"], "server is down")
    assert steps[down["until"]]["at_us"] - steps[down["from"]]["at_us"] == 1_000_000
    assert (paused["kind"], paused["until"]) == ("pause", None)
    [hello] = [message for message in document["messages"] if message["text"] == "6 bytes"]
    assert (hello["outcome"], hello["ended"]) == ("dropped", down["from"])

    def on_server(index: int) -> list[str]:
        return [line for line in waiting_at(document, index) if "serve_forever" in line]

    assert len(on_server(down["from"] - 1)) == 1
    assert on_server(down["from"]) == []
    assert len(on_server(paused["from"])) == 1


def test_partition_holds_messages_in_flight_until_it_ends(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        world.host("server", serve)
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("server", 80)
        with world.network.partition("client", ["server", "broker 1"]):
            writer.write(b"hello\n")
            await asyncio.sleep(7)
        assert await reader.readline() == b"hello\n"
        writer.close()

    with World(story=True) as world:
        world.run(main(world))
        document = saved(world, tmp_path)
    steps, [band], [hello, *_] = document["steps"], document["bands"], document["messages"]
    assert band["nodes"] == ["client", "server", "broker 1"]
    assert hello["sent"] == band["from"]
    assert hello["ended"] > band["until"]
    assert steps[hello["ended"]]["at_us"] - steps[hello["sent"]]["at_us"] > 7_000_000


def test_lost_segment_has_the_outcome_lost(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        world.host("server", serve)
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("server", 80)
        with world.network.lose(1.0):
            writer.write(b"hello\n")
        with pytest.raises(ConnectionResetError):
            await reader.readline()
        await asyncio.sleep(1)

    with World(story=True) as world:
        world.run(main(world))
        document = saved(world, tmp_path)
    hello = document["messages"][0]
    assert hello["outcome"] == "lost"
    assert document["steps"][hello["ended"]]["node"] in ("client", "server")


def test_document_of_a_cluster_has_brokers_faults_and_records(tmp_path: Path) -> None:
    aiokafka: Any = pytest.importorskip("aiokafka")

    async def main(cluster: Any) -> None:
        servers = cluster.bootstrap_servers
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers)
        reader = aiokafka.AIOKafkaConsumer(
            "orders", bootstrap_servers=servers, auto_offset_reset="earliest"
        )
        async with producer, reader:
            await producer.send_and_wait("orders", b"paid", key=b"7")
            await reader.getone()
            leader = next(iter(cluster.brokers))
            await cluster.kill(leader)
            await asyncio.sleep(2)
            await cluster.revive(leader)
            cluster.fault.pause(leader)
            await asyncio.sleep(1)

    with World(story=True) as world:
        cluster = world.cluster(topics=["orders"])
        world.run(main(cluster))
        document = saved(world, tmp_path)
    assert document["nodes"] == ["client", "broker 1", "broker 2", "broker 3"]
    records = {
        frame["name"]: frame["records"]
        for message in document["messages"]
        for frame in message["frames"]
        if frame["records"]
    }
    assert records["Produce v7"] == ["orders-0: 7 = paid"]
    assert records["Produce response"] == ["orders-0: offset 0"]
    assert records["Fetch response"] == ["orders-0@0: 7 = paid"]
    down, paused = document["bands"]
    assert (down["nodes"], down["kind"]) == (["broker 1"], "down")
    assert (paused["nodes"], paused["text"]) == (["broker 1"], "pause 1")
    steps = document["steps"]
    assert steps[down["until"]]["at_us"] - steps[down["from"]]["at_us"] == 2_000_000
    assert down["until"] <= paused["from"]


def test_a_long_run_keeps_its_last_steps(tmp_path: Path) -> None:
    async def main() -> None:
        for _ in range(6_000):
            await asyncio.sleep(0.001)

    with World(story=True) as world:
        world.run(main())
        document = saved(world, tmp_path)
    assert len(document["steps"]) == 5_000
    assert document["steps"][-1]["at_us"] == 6_000_000
    assert document["total_steps"] > 6_000


def test_long_run_keeps_the_steps_around_its_faults(tmp_path: Path) -> None:
    async def run() -> None:
        await asyncio.sleep(1_000)

    async def main(world: World) -> None:
        for _ in range(50):
            await asyncio.sleep(0.001)
        host = world.host("worker", run)
        await asyncio.sleep(0.001)
        host.crash()
        for _ in range(6_000):
            await asyncio.sleep(0.001)

    with World(story=True) as world:
        world.run(main(world))
        document = saved(world, tmp_path)
    steps = document["steps"]
    assert len(steps) == 5_000
    opened = steps[document["begins_at"]]
    assert any("crash" in note for note in opened["notes"])
    assert opened["at_us"] < 100_000
    assert 10 <= document["begins_at"] < 100  # steps before it are there
    assert steps[document["begins_at"] + 10]["at_us"] < 100_000  # and behind it
    assert steps[-1]["at_us"] > 6_000_000


def test_save_story_of_a_world_without_one_raises(tmp_path: Path) -> None:
    with World() as world, pytest.raises(WorldError, match="story=True"):
        world.save_story(tmp_path / "it.story.json")
    assert not list(tmp_path.iterdir())


_TEST = """
import asyncio

async def test_it(world):
    await asyncio.sleep(1)
    assert False, "the bug"
"""


@pytest.mark.slow
def test_pytest_saves_the_story_of_a_failure_in_its_cache(tmp_path: Path) -> None:
    _, printed = run_pytest(tmp_path, "-p", "cacheprovider", text=_TEST)
    [line] = [line for line in printed.splitlines() if "purgatory view" in line]
    path = line.removeprefix("look at it: purgatory view ")
    document = json.loads((tmp_path / path).read_text())
    assert document["title"] == "test_it.py::test_it, seed 0"
    assert document["failure"].startswith("AssertionError at ")
    assert document["command"] in printed
    assert document["steps"][-1]["place"]["source"] == "await asyncio.sleep(1)"
    assert "purgatory view" not in run_pytest(tmp_path, text=_TEST)[1]
