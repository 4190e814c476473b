"""The fixtures and rules that all tests share."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import settings

from tests.rules import Rules
from timer.backend import NATIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.unit.simulation.shipped_runs import ShippedRun

# A shared or throttled machine must not fail a test by being slow: pytest's own limit is enough.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


LEVELS = ("spark", "databases", "browser", "processes", "wire", "world", "proofs", "unit")
"""The folders of tests, by what they need; the dearest come first."""

ONE_WORKER = ("spark", "databases", "browser")
"""The levels whose tests share a session of Spark, a server or a browser: one worker runs them."""

_ROOT = Path(__file__).parents[1]
_ENGINE = re.compile(r"[\[-](spark|duckdb)[\]-]")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Rules(), "rules")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the long proofs ten minutes, unless they say themselves how long they may take.

    Tests that replace parts of the core in pure Python, or look into them, run where those are in
    use.
    """
    for item in items:
        if item.nodeid.startswith("tests/theory/"):
            item.add_marker(pytest.mark.exhaustive)  # what it measures changes with the model alone
        if NATIVE and item.get_closest_marker("pure"):
            item.add_marker(pytest.mark.skip("of the core in pure Python: see PURGATORY_PURE"))
        if item.get_closest_marker("exhaustive") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
        # kafka-python leaves the sockets that it was connecting to the collector, which may find
        # them in any later test; what the brokers forget to close are transports.
        if item.path.parent.name in ("cluster", "proxy"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    items.sort(key=lambda item: _place(item.nodeid))


def _place(nodeid: str) -> int:
    level = nodeid.split("/")[1]
    if level == "spark" and not _takes_the_session(nodeid):
        level = "processes"
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, a worker takes a file, or all of a level that one worker owns."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduling: Any = LoadFileScheduling(config, log)
    of_file = scheduling._split_scope

    def of_level(nodeid: str) -> object:
        level = nodeid.split("/")[1]
        is_shared = level in ONE_WORKER and (level != "spark" or _takes_the_session(nodeid))
        return level if is_shared else of_file(nodeid)

    scheduling._split_scope = of_level
    return scheduling


def _takes_the_session(nodeid: str) -> bool:
    """Whether a test of Spark's level takes the session, as far as its engine or its file tells.

    The others start a Java of their own, or are of DuckDB: any worker may run them.
    """
    file, _, test = nodeid.partition("::")
    of_engine = _ENGINE.search(test)
    return of_engine[1] == "spark" if of_engine else _names_a_session(file)


@cache
def _names_a_session(file: str) -> bool:
    return "spark: SparkSession" in (_ROOT / file).read_text(encoding="utf-8")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many interleavings the core's proofs have tried."""
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
    # An exception in the middle of the library may be one in the middle of logging: then every
    # other thread that logs, in whatever test, would wait for ever.
    assert not logging._lock._is_owned(), "this test left the lock of logging taken"  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def _heap_of_a_module() -> Iterator[None]:
    """Keep the collector from what was there before a module, and collect what the module leaves.

    A simulation or a world collects garbage hundreds of times, and would go through half a million
    objects each time, most of them of collected tests. Clients of Kafka that live on in cycles make
    librdkafka write, in the middle of other tests, that their brokers are gone.
    """
    gc.collect()
    gc.freeze()
    yield
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
    from tests.unit.simulation.shipped_runs import Shipped

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
