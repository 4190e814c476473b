"""Damage to brokers' disks: no acknowledged record is lost while one replica in sync is intact, and
if none is, the loss is logged.

A folder that is copied while the cluster runs equals the one that a SIGKILL leaves.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from purgatory.cluster import Cluster, ClusterConfig, ClusterError, TopicSpec
from purgatory.cluster.storage.disk import RealDisk
from purgatory.kafka import LogConfig, TopicPartition
from tests.processes.cluster.test_storage_cluster import _produce
from tests.wire.cluster.conftest import eventually, isr_of, leader_of
from tests.wire.cluster.raw_client import RawClient

_ORDERS = TopicPartition("orders", 0)
_BROKERS = (1, 2, 3)
_ORDERS_OF_START = list(itertools.permutations(_BROKERS))

Damage = Callable[[Path, random.Random], object]
"""Damages a file."""


def _config(folder: Path, **options: Any) -> ClusterConfig:
    topics = [TopicSpec("orders", 1, options.pop("replication", 3))]
    small = LogConfig(segment_bytes=1_000)
    return ClusterConfig(topics=topics, data_dir=folder, log_config=small, **options)


def _cluster(folder: Path, order: Sequence[int] = _BROKERS, **options: Any) -> Cluster:
    """Return a cluster whose brokers start in this order."""
    cluster = Cluster(_config(folder, **options))
    cluster.brokers = {broker: cluster.brokers[broker] for broker in order}
    return cluster


async def _send(cluster: Cluster, values: Sequence[bytes], each: int = 2) -> None:
    """Send with acks=all, in batches of ``each``."""
    async with await RawClient.to(cluster, leader_of(cluster, "orders")) as client:
        for batch in _batched(values, each):
            answer = await client.ask(0, 9, _produce(batch))
            assert answer.responses[0].partition_responses[0].error_code == 0


def _batched(values: Sequence[bytes], each: int) -> list[list[bytes]]:
    return [list(values[at : at + each]) for at in range(0, len(values), each)]


def _values(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def _stored(cluster: Cluster, broker: int) -> list[bytes]:
    """Return the values of a replica, read off its disk."""
    from kio.records.readers import read_batch

    partition = cluster.brokers[broker].manager.partition(_ORDERS)
    if partition is None:
        return []
    log, values = partition.log, []
    offset = log.start_offset
    while offset < log.end_offset:
        for batch in log.read(offset, 10_000_000):
            values += [r.value or b"" for r in read_batch(batch.to_bytes(), 0)[0].records]
            offset = batch.next_offset
    return values


async def _all_have(cluster: Cluster, values: Sequence[bytes]) -> None:
    """Wait until all replicas are in sync, and see that each has these records, and no other."""
    await eventually(lambda: isr_of(cluster, "orders") == set(_BROKERS))
    for broker in _BROKERS:
        stored = _stored(cluster, broker)
        assert stored == list(values), (broker, len(stored), len(values))


async def _fill(folder: Path, records: int = 60) -> list[bytes]:
    """Write to three brokers, each of which leads for a time; return the acknowledged records."""
    values = _values(0, records)
    part = records // 3
    async with _cluster(folder) as cluster:
        for number in range(3):
            await eventually(lambda: isr_of(cluster, "orders") == set(_BROKERS))
            await _send(cluster, values[number * part : (number + 1) * part])
            leader = leader_of(cluster, "orders")
            await cluster.kill(leader)
            await cluster.revive(leader)
        await _all_have(cluster, values)
        shutil.copytree(folder, folder.with_name(f"{folder.name}-killed"))
    return values


def _segments(folder: Path, broker: int) -> list[Path]:
    return sorted((folder / f"broker-{broker}" / "orders-0").glob("*.log"))


# ---- ways to damage a file


def _flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 3) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(bytes(data))


def _cut(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randint(0, file.stat().st_size))


def _zero(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    at = rng.randint(0, len(data))
    end = rng.randint(at, len(data))
    data[at:end] = bytes(end - at)
    file.write_bytes(bytes(data))


def _delete(file: Path, rng: random.Random) -> None:
    file.unlink(missing_ok=True)


def _delete_folder(file: Path, rng: random.Random) -> None:
    shutil.rmtree(file.parent, ignore_errors=True)


def _cut_batch(file: Path, rng: random.Random) -> None:
    """Cut off the whole last batch: no batch is torn."""
    data, at, last = file.read_bytes(), 0, 0
    while at < len(data):
        last, at = at, at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    os.truncate(file, last)


def _bytes_in_the_middle(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8] = bytes(255 - byte for byte in data[middle : middle + 8])
    file.write_bytes(bytes(data))


DAMAGES: Mapping[str, Damage] = {
    "8 bytes": _bytes_in_the_middle,
    "last batch cut": _cut_batch,
    "a file gone": _delete,
    "the log gone": _delete_folder,
}


# ---- one or two of three


@pytest.mark.parametrize("ended", ["stopped", "killed"])
@pytest.mark.parametrize("damaged", [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3)], ids=str)
def test_damage_to_any_replica_loses_nothing_in_any_order(
    tmp_path: Path, damaged: tuple[int, ...], ended: str
) -> None:
    async def main() -> None:
        values = await _fill(tmp_path / "data")
        image = tmp_path / ("data" if ended == "stopped" else "data-killed")
        places = {0: "first", -1: "last"}
        ways = list(itertools.product(DAMAGES.items(), places.items()))
        for number, order in enumerate(_ORDERS_OF_START):
            for (what, damage), (place, where) in ways[(number + sum(damaged)) % 4 :: 4]:
                folder = tmp_path / f"{number} {what} {where}"
                shutil.copytree(image, folder)
                for broker in damaged:
                    damage(_segments(folder, broker)[place], random.Random(1))
                async with _cluster(folder, order) as cluster:
                    await _all_have(cluster, values)
                shutil.rmtree(folder)

    asyncio.run(main())


def test_damaged_replica_is_out_of_sync_before_an_election(tmp_path: Path) -> None:
    async def main() -> None:
        values = await _fill(tmp_path / "data")
        damaged = _segments(tmp_path / "data", 1)[0]
        _bytes_in_the_middle(damaged, random.Random(1))
        with capture_logs() as logs:
            cluster = _cluster(tmp_path / "data")
            leaders: list[int] = []
            update_role = cluster.brokers[2].update_role

            def watched(topic_partition: TopicPartition, state: Any) -> None:
                if topic_partition == _ORDERS:
                    leaders.append(state.leader)
                update_role(topic_partition, state)

            cluster.brokers[2].update_role = watched  # type: ignore[method-assign]
            async with cluster:
                await _all_have(cluster, values)
        assert leaders[0] == 2, "broker 1 may lead once it has caught up, not before"
        cut, *_ = [log for log in logs if log["event"] == "log_cut"]
        assert cut["file"] == str(damaged)
        (out,) = [log for log in logs if log["event"] == "out_of_sync_at_start"]
        assert out["partition"] == "orders-0"
        assert (out["former_isr"], set(out["isr"])) == ((1, 2, 3), {2, 3})
        assert out["log_ends"] == {1: cut["log_ends_at"], 2: len(values), 3: len(values)}
        assert [log for log in logs if log["log_level"] == "error"] == []

    asyncio.run(main())


# ---- at random

RANDOM_DAMAGES: Sequence[Damage] = (_flip, _flip, _cut, _cut_batch, _zero, _delete, _delete_folder)


async def _random_damage(tmp_path: Path, image: Path, values: list[bytes], seed: int) -> None:
    rng = random.Random(seed)
    folder = tmp_path / f"seed-{seed}"
    shutil.copytree(image, folder)
    for broker in rng.sample(_BROKERS, rng.randint(1, 2)):
        for _ in range(rng.randint(1, 3)):
            place = folder / f"broker-{broker}" / "orders-0"
            files = sorted(place.iterdir()) if place.is_dir() else []
            if files:
                rng.choice(RANDOM_DAMAGES)(rng.choice(files), rng)
    more = _values(len(values), len(values) + 6)
    order = rng.choice(_ORDERS_OF_START)
    async with _cluster(folder, order) as cluster:
        start = cluster.controller.topics["orders"].partitions[0].start_offset
        await _all_have(cluster, [value for value in values if int(value) >= start])
        await _send(cluster, more)
        victim = rng.choice(_BROKERS)
        await cluster.kill(victim)
        files = _segments(folder, victim)
        if files:
            rng.choice(RANDOM_DAMAGES)(rng.choice(files), rng)
        await cluster.revive(victim)
        expected = [value for value in [*values, *more] if int(value) >= start]
        await _all_have(cluster, expected)
    async with _cluster(folder, order) as cluster:
        await _all_have(cluster, expected)
    shutil.rmtree(folder)


async def _random_damages(tmp_path: Path, seeds: range) -> None:
    values = await _fill(tmp_path / "whole")
    shorter = tmp_path / "deleted"
    shutil.copytree(tmp_path / "whole", shorter)
    async with _cluster(shorter) as cluster:  # with a start that is not 0
        await eventually(lambda: isr_of(cluster, "orders") == set(_BROKERS))
        async with await RawClient.to(cluster, leader_of(cluster, "orders")) as client:
            asked = {"partition_index": 0, "offset": 20}
            topics = [{"name": "orders", "partitions": [asked]}]
            answer = await client.ask(21, 2, {"topics": topics, "timeout": timedelta(seconds=5)})
            assert answer.topics[0].partitions[0].error_code == 0
    for seed in seeds:
        images = [tmp_path / "whole", tmp_path / "whole-killed", shorter]
        try:
            await _random_damage(tmp_path, images[seed % 3], values, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.slow
def test_random_damage_to_one_or_two_of_three_loses_nothing(tmp_path: Path) -> None:
    asyncio.run(_random_damages(tmp_path, range(60)))


@pytest.mark.exhaustive
def test_much_random_damage_to_one_or_two_of_three_loses_nothing(tmp_path: Path) -> None:
    asyncio.run(_random_damages(tmp_path, range(60, 500)))


# ---- after any history


async def _history(folder: Path, rng: random.Random) -> tuple[list[bytes], list[Path]]:
    """Send while brokers die and come back and followers stall; return the records acknowledged by
    all in sync, and the files at some moments, with the number acknowledged by then."""
    acknowledged: list[bytes] = []
    images: list[Path] = []
    numbers = itertools.count()
    async with _cluster(folder) as cluster:
        for step in range(40):
            what = rng.choice(["all", "all", "one", "one", "kill", "revive", "stall", "mend"])
            broker = rng.choice(_BROKERS)
            alive = [one for one in _BROKERS if cluster.brokers[one].alive]
            if what == "kill" and len(alive) > 1 and broker in alive:
                await cluster.kill(broker)
            elif what == "revive" and broker not in alive:
                await cluster.revive(broker)
            elif what == "stall":
                cluster.fault.stall_follower(broker)
            elif what == "mend":
                cluster.fault.end_all()
                await asyncio.sleep(rng.choice([0, 0.01]))
            elif what in ("all", "one") and leader_of(cluster, "orders") in alive:
                values = [b"%d" % next(numbers) for _ in range(rng.randint(1, 3))]
                asked = {**_produce(values), "acks": -1 if what == "all" else 1}
                asked["timeout"] = timedelta(milliseconds=30)
                async with await RawClient.to(cluster, leader_of(cluster, "orders")) as client:
                    answer = await client.ask(0, 9, asked)
                    if answer.responses[0].partition_responses[0].error_code == 0 and what == "all":
                        acknowledged += values
            if step % 10 == 9:
                images.append(folder.with_name(f"{folder.name}-image-{step}"))
                shutil.copytree(folder, images[-1])
                (images[-1] / "acknowledged").write_text(str(len(acknowledged)))
    return acknowledged, images


async def _after_a_history(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged, images = await _history(tmp_path / f"seed-{seed}", rng)
    for image in images:
        expected = acknowledged[: int((image / "acknowledged").read_text())]
        metadata = json.loads((image / "cluster.json").read_text())
        orders = next(topic for topic in metadata["topics"] if topic["name"] == "orders")
        intact = rng.choice(orders["partitions"][0]["isr"])
        for broker in set(_BROKERS) - {intact}:
            files = _segments(image, broker)
            if files and rng.random() < 0.7:
                rng.choice(RANDOM_DAMAGES)(rng.choice(files), rng)
        with capture_logs() as logs:
            async with _cluster(image, rng.choice(_ORDERS_OF_START)) as cluster:
                await eventually(lambda: isr_of(cluster, "orders") == set(_BROKERS))
                for broker in _BROKERS:
                    there = set(_stored(cluster, broker))
                    assert [value for value in expected if value not in there] == [], broker
        assert [log for log in logs if log["event"] == "acknowledged_records_lost"] == []
        shutil.rmtree(image)


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 200), marks=pytest.mark.exhaustive)]
)
def test_one_intact_replica_in_sync_is_enough(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        try:
            asyncio.run(_after_a_history(tmp_path, seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


# ---- in a cluster that runs


def test_killed_broker_loads_its_disk_and_copies_the_rest(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        values = _values(0, 20)
        async with _cluster(tmp_path) as cluster:
            await _send(cluster, values)
            await _all_have(cluster, values)
            for number, (broker, damage) in enumerate(
                itertools.product(_BROKERS, DAMAGES.values())
            ):
                await cluster.kill(broker)
                more = _values(1_000 * (number + 1), 1_000 * (number + 1) + 2)
                await _send(cluster, more)
                values += more
                damage(_segments(tmp_path, broker)[0], random.Random(1))
                await cluster.revive(broker)
                await _all_have(cluster, values)

    asyncio.run(main())


@pytest.mark.parametrize("damaged", [False, True], ids=["intact", "damaged"])
def test_longest_log_leads_if_the_last_isr_member_is_damaged(tmp_path: Path, damaged: bool) -> None:
    async def main() -> None:
        values = _values(0, 40)
        async with _cluster(tmp_path) as cluster:
            await _send(cluster, values[:30])
            await _all_have(cluster, values[:30])
            await cluster.kill(2)
            await cluster.kill(3)
            await _send(cluster, values[30:])
            await cluster.kill(1)
            if damaged:
                _bytes_in_the_middle(_segments(tmp_path, 1)[0], random.Random(1))
            await cluster.revive(2)
            await cluster.revive(3)
            assert leader_of(cluster, "orders") == -1, "only broker 1 has all that was acknowledged"
            with capture_logs() as logs:
                await cluster.revive(1)
                await _all_have(cluster, values[:30] if damaged else values)
        lost = [log for log in logs if log["event"] == "acknowledged_records_lost"]
        cut = [log for log in logs if log["event"] == "replica_cut"]
        assert cut == []
        if not damaged:
            assert lost == []
            return
        (lost_here,) = lost
        assert lost_here["log_level"] == "error"
        assert (lost_here["from_offset"], lost_here["to_offset"]) == (30, 40)
        assert set(lost_here["isr"]) == {2, 3}

    asyncio.run(main())


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_sole_replica_leads_and_logs_the_loss(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        values = _values(0, 40)
        options = {"brokers": 1, "replication": 1}
        async with _cluster(tmp_path, (1,), **options) as cluster:
            await _send(cluster, values)
        last = -1 if what == "last batch cut" else 0
        DAMAGES[what](_segments(tmp_path, 1)[last], random.Random(1))
        with capture_logs() as logs:
            async with _cluster(tmp_path, (1,), **options) as cluster:
                left = _stored(cluster, 1)
                assert left == values[: len(left)]
                await _send(cluster, [b"more"])
        (lost,) = [log for log in logs if log["event"] == "acknowledged_records_lost"]
        assert (lost["from_offset"], lost["to_offset"]) == (len(left), len(values))
        with capture_logs() as logs:
            async with _cluster(tmp_path, (1,), **options) as cluster:
                assert _stored(cluster, 1) == [*left, b"more"]
        assert [log for log in logs if log["log_level"] in ("warning", "error")] == [], "said once"

    asyncio.run(main())


def test_truncation_of_a_follower_is_logged(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        values = _values(0, 10)
        async with _cluster(tmp_path) as cluster:
            await _send(cluster, values)
            first = leader_of(cluster, "orders")
            for broker in set(_BROKERS) - {first}:
                cluster.fault.stall_follower(broker)
            async with await RawClient.to(cluster, first) as client:
                unsafe = {**_produce([b"only the leader has it"]), "acks": 1}
                answer = await client.ask(0, 9, unsafe)
                assert answer.responses[0].partition_responses[0].error_code == 0
            await cluster.kill(first)
            cluster.fault.end_all()
            with capture_logs() as logs:
                await cluster.revive(first)
                await _all_have(cluster, values)
            (cut,) = [log for log in logs if log["event"] == "replica_cut"]
            state = cluster.controller.state_of(_ORDERS)
            assert state is not None
            assert cut == {
                "event": "replica_cut",
                "log_level": "warning",
                "broker": first,
                "partition": "orders-0",
                "from_offset": 10,
                "to_offset": 11,
                "leader": state.leader,
                "leader_epoch": state.leader_epoch,
            }

    asyncio.run(main())


def test_follower_refuses_bytes_damaged_on_its_leaders_disk(tmp_path: Path) -> None:
    async def main() -> None:
        values = _values(0, 10)
        async with _cluster(tmp_path) as cluster:
            await _send(cluster, values)
            await _all_have(cluster, values)
            leader = leader_of(cluster, "orders")
            late = max(set(_BROKERS) - {leader})
            await cluster.kill(late)
            shutil.rmtree(tmp_path / f"broker-{late}" / "orders-0")
            (segment,) = _segments(tmp_path, leader)
            sound = segment.read_bytes()
            with capture_logs() as logs:
                with segment.open("r+b") as file:
                    file.seek(len(sound) - 10)
                    file.write(bytes(8))
                await cluster.revive(late)
                await eventually(lambda: any(log["event"] == "replica_refused" for log in logs))
                await asyncio.sleep(0.2)
                (refused,) = [log for log in logs if log["event"] == "replica_refused"]
            assert (refused["broker"], refused["leader"]) == (late, leader)
            assert "checksum" in refused["reason"]
            assert late not in isr_of(cluster, "orders")
            with segment.open("r+b") as file:
                file.write(sound)
            await _all_have(cluster, values)

    asyncio.run(main())


# ---- metadata


def test_logs_without_metadata_are_refused_and_kept(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        values = _values(0, 10)
        async with _cluster(tmp_path) as cluster:
            await _send(cluster, values)
            await _all_have(cluster, values)
        metadata = tmp_path / "cluster.json"
        metadata.rename(tmp_path / "elsewhere")
        with pytest.raises(ClusterError, match=r"cluster\.json is missing, but there are logs"):
            async with _cluster(tmp_path):
                pass
        (tmp_path / "elsewhere").rename(metadata)
        async with _cluster(tmp_path) as cluster:
            await _all_have(cluster, values)

    asyncio.run(main())


def test_outdated_metadata_lose_no_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with _cluster(tmp_path / "data"):
            pass
        former = (tmp_path / "data" / "cluster.json").read_bytes()
        values = await _fill(tmp_path / "data")  # in later epochs
        (tmp_path / "data" / "cluster.json").write_bytes(former)
        for _ in range(2):
            async with _cluster(tmp_path / "data") as cluster:
                await _all_have(cluster, values)
        damaged = _segments(tmp_path / "data", 1)[-1]
        data = bytearray(damaged.read_bytes())
        data[12:16] = (2**31 - 1).to_bytes(4, "big")  # an epoch that no election made
        damaged.write_bytes(bytes(data))
        async with _cluster(tmp_path / "data") as cluster:
            await _all_have(cluster, values)
            state = cluster.controller.state_of(_ORDERS)
            assert state is not None
            assert state.leader_epoch < 1_000

    asyncio.run(main())


def test_partition_with_an_unsaved_isr_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def code_of(cluster: Cluster) -> int:
        async with await RawClient.to(cluster, leader_of(cluster, "orders")) as client:
            answer = await client.ask(0, 9, _produce([b"unsafe"]))
            return int(answer.responses[0].partition_responses[0].error_code)

    async def main() -> None:
        values = _values(0, 10)
        async with _cluster(tmp_path) as cluster:
            await _send(cluster, values)
            await _all_have(cluster, values)
            follower, leader = sorted(
                _BROKERS, key=lambda broker: broker == leader_of(cluster, "orders")
            )[1:]
            cluster.fault.stall_follower(follower)
            async with await RawClient.to(cluster, leader) as client:
                waiting = asyncio.create_task(client.ask(0, 9, _produce([b"waits"])))
                partition = cluster.brokers[leader].manager.partition(_ORDERS)
                assert partition is not None
                await eventually(lambda: partition.log_end_offset == 11)
                with monkeypatch.context() as patch, capture_logs() as logs:
                    patch.setattr(RealDisk, "replace", staticmethod(no_space))
                    await cluster.kill(follower)
                    # The ISR is smaller now, and the record replicated: but a restart would find
                    # the former ISR, with the broker that lacks the record.
                    answer = await waiting
                    assert answer.responses[0].partition_responses[0].error_code == 20
                    assert [await code_of(cluster) for _ in range(3)] == [56, 56, 56]
                assert len([log for log in logs if log["event"] == "metadata_not_saved"]) == 1
                assert await code_of(cluster) == 0, "there is room again"

    asyncio.run(main())
