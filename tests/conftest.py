"""What all tests share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from binascii import crc32
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import settings

from timer.backend import NATIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.simulation.shipped_runs import ShippedRun

# Tests of the archive of Spark's classes make their own; no other session begins one beside it.

# A shared or throttled machine must not fail a test by being slow: pytest's own limit is enough.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


EACH_TIME = ("core", "documents", "event_loop", "interrupts", "timer")
"""The folders whose tests ``--fifth`` leaves whole."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fifth",
        type=int,
        choices=range(5),
        help=f"a fifth of the test files; all of those of {', '.join(EACH_TIME)}",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the long proofs ten minutes, unless they say themselves how long they may take.

    What replaces parts of the core in pure Python, or looks into them, runs where those are in use.
    Workers take the files of Spark, which need a core, among the others, which wait more.
    """
    fifth = config.getoption("fifth")
    if fifth is not None:
        left = [item for item in items if fifth_of(item.path) not in (None, fifth)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if fifth_of(item.path) in (None, fifth)]
    for item in items:
        if NATIVE and item.get_closest_marker("pure"):
            item.add_marker(pytest.mark.skip("of the core in pure Python: see PURGATORY_PURE"))
        if item.get_closest_marker("exhaustive") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
        # kafka-python leaves the sockets that it was connecting to the collector, which may find
        # them in any later test; what the brokers forget to close are transports.
        if item.path.parent.name in ("cluster", "proxy"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _with_spark_among_the_others(items)


@cache
def fifth_of(file: Path) -> int | None:
    """Return the fifth that a file is in; None: in each of them."""
    name = file.relative_to(Path(__file__).parent)
    return None if name.parts[0] in EACH_TIME else crc32(name.as_posix().encode()) % 5


def _with_spark_among_the_others(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order the files so that those of Spark come at even distances, none of them last."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    heavy = [file for file in files if any(one.get_closest_marker("spark") for one in files[file])]
    light = [file for file in files if file not in heavy]
    place = {file: (number + 0.5) / len(light) for number, file in enumerate(light)}
    place |= {file: 0.9 * number / len(heavy) for number, file in enumerate(heavy)}
    return [item for file in sorted(files, key=place.__getitem__) for item in files[file]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many interleavings the core's proofs have tried, and which tests were left out."""
    fifth = terminalreporter.config.getoption("fifth")
    if fifth is not None:
        whole = ", ".join(EACH_TIME)
        terminalreporter.write_line(
            f"fifth {fifth} of the test files (0 to 4), all of {whole}; "
            f"each day has another; `make test FIFTH=all` runs all five"
        )
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name.startswith("schedules"):
                counts[name] += value
    for name, count in counts.items():
        terminalreporter.write_line(f"{count:,} {name}: none failed")


@pytest.fixture(autouse=True)
def _unconfigured_logs() -> Iterator[None]:
    """Begin as a program that configured nothing; commands that ran before did."""
    structlog.reset_defaults()
    yield
    # What raises in the middle of the library may have raised in the middle of logging: then every
    # other thread that logs, in whatever test, would wait for ever.
    assert not logging._lock._is_owned(), "this test left the lock of logging taken"  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def _no_clients_left() -> Iterator[None]:
    """Collect the Kafka clients that a module left in cycles.

    While they live, librdkafka writes that their brokers are gone, in the middle of other tests.
    """
    yield
    if "confluent_kafka" in sys.modules:
        gc.collect()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM be what they are in a program.

    Workers of a test run in parallel ignore the first, and a session of Spark that other tests have
    opened handles both.
    """
    at_first: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in at_first.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> ShippedRun:
    """A function that gives the run of a shipped scenario, which is made once for all workers."""
    from tests.simulation.shipped_runs import Shipped

    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shipped"
    shared.mkdir(exist_ok=True)
    return cache(lambda name: Shipped(name, shared))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of a process, which knows the format of topics."""
    from purgatory.pipeline.engines.spark.session import spark_session
    from purgatory.source import register

    with spark_session("local[2]", rows=0) as session:
        register(session)
        yield session
