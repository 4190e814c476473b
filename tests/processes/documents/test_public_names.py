"""The public names as an editor, a debugger and a type checker show them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.cluster import Cluster, ClusterTrace, Control, ThreadedCluster
from purgatory.core.watchers import WatcherList
from purgatory.kafka.faults.kinds import Pause
from purgatory.proxy import Proxy, ProxyConfig, ThreadedProxy
from purgatory.simulation import Simulation, load_scenario, shipped_scenarios
from purgatory.trace.rows_in_memory import RowsInMemory
from purgatory.virtual import OperationHistory, Register, World
from timer import InlineExecutor, ManualClock, SystemTimer, TimingWheel
from timer.delay_queue import DelayQueue
from timer.executor import SingleThreadExecutor
from timer.histogram import Histogram
from timer.timer_task import TimerTaskEntry
from timer.timer_task_list import TimerTaskList
from timer.wake import Wake

PACKAGES = (
    "timer",
    "purgatory",
    *(
        f"purgatory.{name}"
        for name in ("cluster", "simulation", "virtual", "shared", "proxy", "real_kafka")
    ),
)


class Waiting(DelayedOperation):
    def try_complete(self) -> bool:
        return False


def public_classes(package: str) -> list[type]:
    found = [getattr(import_module(package), name) for name in import_module(package).__all__]
    return [one for one in found if inspect.isclass(one)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_has_a_repr_of_its_own(package: str) -> None:
    classes = [one for one in public_classes(package) if not getattr(one, "_is_protocol", False)]
    assert classes
    assert [one.__name__ for one in classes if vars(object)["__repr__"] is one.__repr__] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_completion_shows_no_private_name(package: str) -> None:
    names = dir(import_module(package))
    assert set(import_module(package).__all__) <= set(names)
    assert [name for name in names if name.startswith("_") and not name.endswith("__")] == []


def test_reprs_of_a_timer_and_its_parts() -> None:
    clock = ManualClock(5)
    timer = SystemTimer("wheel", clock=clock, executor=InlineExecutor())
    task = timer.call_later(40, print)
    queue = DelayQueue()
    bucket = TimerTaskList(1, 3)
    shown = [repr(one) for one in (clock, timer, queue, bucket, Wake(), InlineExecutor())]
    assert shown == [
        "<ManualClock at 5 ms>",
        "<SystemTimer 'wheel': 1 pending>",
        "<DelayQueue of 0 buckets>",
        "<TimerTaskList level=1 index=3 idle: 0 pending>",
        "<Wake>",
        "<InlineExecutor: 0 due>",
    ]
    queue.offer(bucket, 40)
    wake = Wake()
    wake.set()
    timer.close()
    histogram = Histogram([1, 2])
    histogram.observe(5)
    worker = SingleThreadExecutor("worker")
    worker.shutdown()
    wheel = TimingWheel(1, 20, 45, queue)
    shown = [repr(one) for one in (timer, queue, bucket, wake, histogram, worker, wheel)]
    assert shown == [
        "<SystemTimer 'wheel' closed: 0 pending>",
        "<DelayQueue of 1 buckets, the first due at 40 ms>",
        "<TimerTaskList level=1 index=3 at 40 ms: 0 pending>",
        "<Wake set>",
        "<Histogram of 1 values>",
        "<SingleThreadExecutor 'worker' closed: 0 due>",
        "<TimingWheel level=1 tick_ms=1 wheel_size=20 at 45 ms>",
    ]
    assert repr(TimerTaskEntry(task, 45)).startswith("<TimerTaskEntry expiration_ms=45 of <CallLat")


def test_reprs_of_a_purgatory_and_its_parts() -> None:
    with DelayedOperationPurgatory("Fetch") as purgatory:
        purgatory.try_complete_else_watch(Waiting(60_000), ["log"])
        assert repr(purgatory) == "<DelayedOperationPurgatory 'Fetch': 1 pending>"
        assert repr(purgatory.reaper) == "<ExpiredOperationReaper 'ExpirationReaper-0-Fetch' alive>"
    assert repr(purgatory) == "<DelayedOperationPurgatory 'Fetch' closed: 0 pending>"
    assert "not running" in repr(purgatory.reaper)
    assert repr(WatcherList()) == "<WatcherList of 0 entries on 0 keys>"


def test_reprs_of_clusters_and_proxies() -> None:
    cluster = Cluster()
    assert repr(cluster) == "<Cluster of 3 brokers, 0 topics, 0 faults>"
    assert repr(cluster.fault) == "<Faults: 0 active>"
    assert repr(Control(cluster, port=1)) == "<Control at http://127.0.0.1:1>"
    trace = ClusterTrace(RowsInMemory(), operations=False)
    assert repr(trace) == "<ClusterTrace of 0 clients: 0 sends pending>"
    config = ProxyConfig(["kafka-1:9092"])
    assert repr(Proxy(config)) == "<Proxy to kafka-1:9092: <ProxyFaults: 0 active>>"
    assert repr(ThreadedProxy(config)) == "<ThreadedProxy not started to kafka-1:9092>"
    with ThreadedCluster() as threaded:
        assert repr(threaded) == f"<ThreadedCluster {threaded.bootstrap_servers}>"
        with threaded.fault.pause(1) as fault:
            assert isinstance(fault._begun.fault, Pause)
            assert repr(fault) == "<ThreadedFault of <ActiveFault 1 pause broker=1 active>>"
        assert repr(fault).endswith(" ended>>")


def test_reprs_of_simulations_and_worlds() -> None:
    loaded = load_scenario(next(iter(shipped_scenarios())))
    assert repr(Simulation(loaded)).startswith("<Simulation ")
    world = World(seed=1)
    network = world.network
    with network.partition("client", "broker 1") as partition:
        assert repr(partition) == "<Partition client|broker 1>"
    assert repr(partition) == "<Partition client|broker 1 ended>"
    assert repr(network).startswith("<VirtualNetwork latency 0.2ms..2ms")
    assert repr(Register()) == "<Register value=None>"
    history = OperationHistory()
    with history.operation("write", 3, key="x") as operation:
        assert repr(operation) == "<Operation 'x': write(3), result unknown>"
    assert repr(history) == "<OperationHistory of 1 operations, 0 transactions>"


USES = """
from purgatory import AsyncPurgatory, DelayedOperation, DelayedOperationPurgatory
from timer import SystemTimer

class Waiting(DelayedOperation):
    def try_complete(self) -> bool:
        return False

def use(purgatory: DelayedOperationPurgatory, waiting: Waiting, timer: SystemTimer) -> None:
    {taken}
    purgatory.try_complete_else_watch(waiting, "log")
    purgatory.advance("log", "1")
    purgatory.wait("log", lambda: True)
    purgatory.wait(["log"], lambda: 5, timeout=1).bit_count()
    Waiting(None)
    purgatory.close(policy="drop")
    waiting.call_when_completed(5)
    timer.call_later(0.5, print)

async def wait(purgatory: AsyncPurgatory, waiting: Waiting) -> None:
    await purgatory.wait("log", lambda: True)
    await purgatory.submit(waiting, b"log")
"""


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The messages of mypy about these uses."""
    folder = tmp_path_factory.mktemp("typed")
    snippet = folder / "uses.py"
    kinds = ('["log"]', '("log", 5)', '{"log"}', '{"log": 1}', '(key for key in ["log"])')
    calls = "\n    ".join(f"purgatory.try_complete_else_watch(waiting, {kind})" for kind in kinds)
    snippet.write_text(USES.replace("{taken}", calls))
    root = Path(__file__).parents[3]
    # Only the sources of these names are read, so that it takes seconds without mypy's cache.
    files = [root / "purgatory" / "__init__.py", *(root / "timer").glob("*.py")]
    files += (root / "purgatory" / "core").glob("*.py")
    options = ["--config-file=", "--cache-dir=/dev/null", "--follow-imports=skip"]
    command = [sys.executable, "-m", "mypy", *options, "--explicit-package-bases", str(snippet)]
    ran: Any = subprocess.run(
        [*command, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        timeout=280,
    )
    return [line for line in ran.stdout.splitlines() if " error: " in line]


@pytest.mark.slow
def test_type_checkers_refuse_a_single_text_as_keys(messages: list[str]) -> None:
    refused = [line for line in messages if 'expected "KeyCollection[Hashable] | Iterator' in line]
    assert len(refused) == 4


def test_type_errors_name_the_method_and_the_class_that_defines_it(messages: list[str]) -> None:
    assert len(messages) == 8
    for named in (
        '"try_complete_else_watch" of "_PurePurgatory"',
        '"advance" of "_PurePurgatory"',
        '"wait" of "DelayedOperationPurgatory"',
        '"close" of "DelayedOperationPurgatory"',
        '"call_when_completed" of "_PureOperation"',
        '"call_later" of "_PureTimer"',
        '"wait" of "AsyncPurgatory"',
        '"submit" of "AsyncPurgatory"',
    ):
        assert [line for line in messages if named in line], named
