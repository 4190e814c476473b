"""A cluster in a world with disks: the records that survive power cuts, and full disks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from purgatory.cluster import ClusterConfig, ClusterError, Fsync, TopicSpec
from purgatory.cluster.storage.disk import list_paths, read_file
from purgatory.virtual import World, WorldError
from purgatory.virtual.cluster import WorldCluster
from purgatory.virtual.disk import VirtualDisk
from tests.chaos.wire_hour import run_wire

_PARTITIONS = 6
_TOPICS = {"orders": _PARTITIONS}


async def _produce(servers: str, numbers: range) -> dict[int, tuple[int, int]]:
    """Send numbers; return the acknowledged partition and offset of each."""
    acknowledged = {}
    async with AIOKafkaProducer(
        bootstrap_servers=servers, client_id="producer", acks="all", enable_idempotence=True
    ) as producer:
        for number in numbers:
            sent = await producer.send_and_wait(
                "orders", b"%d" % number, partition=number % _PARTITIONS
            )
            acknowledged[number] = sent.partition, sent.offset
    return acknowledged


async def _read(servers: str) -> dict[int, tuple[int, int]]:
    """Return the partition and offset of each number."""
    found = {}
    partitions = [TopicPartition("orders", number) for number in range(_PARTITIONS)]
    async with AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        for partition in partitions:
            while await consumer.position(partition) < ends[partition]:
                for one, records in (await consumer.getmany(timeout_ms=500)).items():
                    found.update({int(r.value): (one.partition, r.offset) for r in records})
    return found


async def _cut_one_after_the_other(
    cluster: WorldCluster, seconds: float = 30
) -> dict[int, tuple[int, int]]:
    """Cut the power of each broker, and revive it; return the numbers acknowledged meanwhile."""
    acknowledged: dict[int, tuple[int, int]] = {}
    for number, broker in enumerate(cluster.brokers):
        await cluster.cut_power(broker)
        acknowledged |= await _produce(
            cluster.bootstrap_servers, range(1_000 * (number + 1), 1_000 * (number + 1) + 20)
        )
        await cluster.revive(broker)
        await asyncio.sleep(seconds)
    return acknowledged


@pytest.mark.parametrize("seed", range(5))
def test_power_cut_of_one_broker_loses_no_acknowledged_record(seed: int) -> None:
    with World(seed) as world:
        cluster = world.cluster(topics=_TOPICS, min_insync_replicas=2, disk=True)
        acknowledged = world.run(_produce(cluster.bootstrap_servers, range(60)))
        acknowledged |= world.run(_cut_one_after_the_other(cluster))
        assert world.run(_read(cluster.bootstrap_servers)) == acknowledged
        kinds = [event.text for event in world.last_events(20_000) if event.kind == "disk"]
        assert len(kinds) == 3
    cluster.audit(expect=["no-loss"]).assert_no_violations()


@pytest.mark.parametrize("seed", range(5))
def test_fsync_always_survives_a_power_cut_of_all_brokers(
    seed: int,
) -> None:
    with World(seed) as world:
        cluster = world.cluster(
            topics=_TOPICS, min_insync_replicas=2, disk=True, fsync=Fsync.ALWAYS
        )
        acknowledged = world.run(_produce(cluster.bootstrap_servers, range(60)))

        async def cut_and_revive() -> None:
            await asyncio.gather(*map(cluster.cut_power, cluster.brokers))
            await asyncio.gather(*map(cluster.revive, cluster.brokers))

        world.run(cut_and_revive())
        assert world.run(_read(cluster.bootstrap_servers)) == acknowledged
        acknowledged |= world.run(_produce(cluster.bootstrap_servers, range(100, 120)))
        # The controller loses power at the same moment: another cluster starts from the disk.
        world.run(cluster.cut_power())
        again = world.cluster(
            topics=_TOPICS, min_insync_replicas=2, disk=cluster.virtual_disk, fsync=Fsync.ALWAYS
        )
        assert world.run(_read(again.bootstrap_servers)) == acknowledged
        acknowledged |= world.run(_produce(again.bootstrap_servers, range(200, 220)))
        assert world.run(_read(again.bootstrap_servers)) == acknowledged


def test_fsync_never_may_lose_records_in_a_power_cut() -> None:
    lost = 0
    for seed in range(5):
        with World(seed) as world:
            cluster = world.cluster(topics=_TOPICS, min_insync_replicas=2, disk=True)
            acknowledged = world.run(_produce(cluster.bootstrap_servers, range(60)))
            world.run(cluster.cut_power())
            again = world.cluster(topics=_TOPICS, disk=cluster.virtual_disk)
            left = world.run(_read(again.bootstrap_servers))
            # Each partition keeps its beginning.
            for partition in range(_PARTITIONS):
                offsets = sorted(offset for one, offset in left.values() if one == partition)
                assert offsets == list(range(len(offsets)))
            assert left.items() <= acknowledged.items()
            lost += len(acknowledged) - len(left)
            more = world.run(_produce(again.bootstrap_servers, range(100, 120)))
            assert world.run(_read(again.bootstrap_servers)) == left | more
    assert lost > 0


@pytest.mark.slow
def test_full_disk_fails_sends_until_there_is_space_again() -> None:
    async def fill(cluster: WorldCluster) -> tuple[dict[int, Any], int]:
        acknowledged = await _produce(cluster.bootstrap_servers, range(30))
        for broker in cluster.brokers:
            cluster.disk(broker).fill(after_bytes=100)
        refused = 0
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, acks="all", request_timeout_ms=5_000
        ) as producer:
            for number in range(100, 130):
                try:
                    await producer.send_and_wait(
                        "orders", b"%d" % number, partition=number % _PARTITIONS
                    )
                except KafkaError:
                    refused += 1
        for broker in cluster.brokers:
            assert cluster.disk(broker).is_full or cluster.disk(broker).usage.free_bytes < 100
            cluster.disk(broker).remove_limit()
        return acknowledged | await _produce(cluster.bootstrap_servers, range(200, 230)), refused

    with World(3) as world:
        cluster = world.cluster(topics=_TOPICS, min_insync_replicas=2, disk=True)
        acknowledged, refused = world.run(fill(cluster))
        assert refused > 20
        found = world.run(_read(cluster.bootstrap_servers))
        assert acknowledged.items() <= found.items()
        world.run(_killed_and_revived(cluster))
        assert world.run(_read(cluster.bootstrap_servers)) == found, "no log is torn"


async def _killed_and_revived(cluster: WorldCluster) -> None:
    for broker in cluster.brokers:
        await cluster.kill(broker)
        await cluster.revive(broker)
        await asyncio.sleep(10)


def _on_virtual(disk: VirtualDisk, folder: Path, place: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in list_paths(disk, folder):
        name = f"{place}{path.name}"
        if disk.is_folder(path):
            found |= _on_virtual(disk, path, f"{name}/")
        else:
            found[name] = read_file(disk, path)
    return found


def test_brokers_write_the_same_bytes_to_virtual_and_real_disks(tmp_path: Path) -> None:
    topics = [
        TopicSpec(
            "orders",
            _PARTITIONS,
            settings={"internal.segment.bytes": "1000", "retention.ms": "40000"},
        ),
        TopicSpec(
            "prices", 1, settings={"internal.segment.bytes": "1000", "cleanup.policy": "compact"}
        ),
        TopicSpec(
            "logins", 1, settings={"internal.segment.bytes": "1000", "retention.ms": "20000"}
        ),
    ]

    async def work(cluster: WorldCluster) -> None:
        await _produce(cluster.bootstrap_servers, range(120))
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, client_id="t", transactional_id="t"
        ) as producer:
            for number in range(40):
                async with producer.transaction():
                    await producer.send("prices", b"%d" % number, key=b"%d" % (number % 3))
                    await producer.send("logins", b"%d" % number)
                await asyncio.sleep(3)
        await cluster.kill(2)
        await _produce(cluster.bootstrap_servers, range(300, 330))
        await cluster.revive(2)
        cluster.controller.delete_topic("orders")
        await asyncio.sleep(60)

    written, digests = [], []
    for kind in ("machine", "memory"):
        config = ClusterConfig(
            topics=topics,
            first_port=9092,
            min_insync_replicas=2,
            replica_max_lag_ms=10_000,
            data_dir=tmp_path / "data" if kind == "machine" else None,
        )
        with World(5) as world:
            cluster = world.cluster(config=config, disk=kind == "memory")
            world.run(work(cluster))
            digests.append(world.digest)
            if cluster.has_virtual_disk:
                disk = cluster.virtual_disk
                files = _on_virtual(disk, Path("/purgatory"), "data/")
            else:
                files = {
                    str(path.relative_to(tmp_path)): path.read_bytes()
                    for path in tmp_path.rglob("*")
                    if path.is_file()
                }
                for path in sorted(tmp_path.rglob("*"), reverse=True):
                    path.unlink() if path.is_file() else path.rmdir()
            written.append(files)
    assert written[0].keys() == written[1].keys()
    assert written[0] == written[1]
    assert not list(tmp_path.rglob("*")), "the machine's disk stays unwritten"
    names = " ".join(written[0])
    assert ".producers" in names
    assert ".log" in names
    assert "/start" in names
    assert "orders" not in names
    assert digests[0] == digests[1]


def test_seed_determines_the_disk_after_faults() -> None:
    def run(seed: int) -> tuple[str, dict[str, bytes]]:
        with World(seed) as world:
            cluster = world.cluster(disk=True, topics=_TOPICS)
            world.chaos(
                cluster, kinds=["cut_power", "fill_disk"], per_min=10, end="2min", longest="10s"
            )
            world.pass_time("3min")
            return world.digest, _on_virtual(cluster.virtual_disk, Path("/purgatory"))

    assert run(1) == run(1)
    assert run(1)[0] != run(2)[0]


def test_chaos_draws_disk_faults_only_for_virtual_disks() -> None:
    def plan(**options: Any) -> set[str]:
        with World(4) as world:
            cluster = world.cluster(topics=["orders"], **options)
            world.chaos(cluster, per_min=100, end="1min", longest="2s")
            world.pass_time("2min")
            assert all(cluster.live_broker(broker) is not None for broker in cluster.brokers)
            return {" ".join(fault.text.split()[:2]) for fault in world.faults}

    of_disk = {"power cut", "disk of"}
    assert not plan() & of_disk
    assert plan(disk=True) >= of_disk


def test_invalid_arguments_are_refused() -> None:
    with World() as world:
        cluster = world.cluster(brokers=1)
        for call in (cluster.disk, lambda: world.run(cluster.cut_power(1))):
            with pytest.raises(WorldError, match=r"world.cluster\(disk=True\)"):
                call()
        with pytest.raises(WorldError, match="there is no 'cut_power'"):
            world.chaos(cluster, kinds=["cut_power"])
    with World() as world:
        with pytest.raises(ClusterError, match="give one of them"):
            world.cluster(disk=True, data_dir=Path("x"))
        cluster = world.cluster(brokers=2, disk=True)
        with pytest.raises(WorldError, match="no broker 3; there are 1, 2"):
            cluster.disk(3)
        with pytest.raises(WorldError, match="no broker 3; there are 1, 2"):
            world.run(cluster.cut_power(3))
        with pytest.raises(ClusterError, match="in use by another cluster"):
            world.cluster(config=ClusterConfig(first_port=19092), disk=cluster.virtual_disk)


def test_power_cut_applies_to_a_dead_or_reviving_broker() -> None:
    async def application(cluster: WorldCluster) -> None:
        await cluster.kill(1)
        await cluster.cut_power(1)
        coming = asyncio.create_task(cluster.revive(1))
        await asyncio.sleep(0)
        await cluster.cut_power(1)
        await coming
        assert cluster.live_broker(1) is None
        await cluster.cut_power(1, for_s=1)
        await cluster.revive(1)
        await cluster.cut_power(1, for_s=1)
        await asyncio.sleep(5)
        assert cluster.live_broker(1) is not None

    with World() as world:
        cluster = world.cluster(topics=_TOPICS, disk=True)
        world.run(application(cluster))
        world.run(_produce(cluster.bootstrap_servers, range(20)))


@pytest.mark.parametrize(
    "minutes", [0.5, pytest.param(12.0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_real_clients_keep_guarantees_with_disk_faults(
    minutes: float,
) -> None:
    hour = run_wire(3, minutes, on_disk=True)
    assert hour.wrong == []
    assert hour.records > 200 * minutes
