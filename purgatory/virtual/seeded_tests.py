"""Tests in worlds: the runs of one test, one after the other, until one fails.

A test with ``seeds=200`` is one item of pytest. Its fixtures are set up and torn down for each run,
by pytest's own calls. If the world is the only fixture, it is made here, which is quicker. At the
first failure the runs end, and the same test is run again with fewer faults, a plain network, and
fewer deviations of the schedule (`shrinking`).

With ``--virtual-jobs`` forked processes share the runs, and return only the first run that fails.
That run is repeated here, so the report does not depend on the number of processes.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import sys
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import wraps
from inspect import iscoroutinefunction
from math import ceil
from traceback import format_exception_only
from typing import Any, Final

import pytest

from purgatory.virtual.clocks import real_perf_counter, real_time
from purgatory.virtual.errors import PropertyError
from purgatory.virtual.failure_report import RepeatedTest, WorldFailure, world_failure
from purgatory.virtual.schedules import (
    FIFO,
    MIXED,
    RECORDED_FIFO,
    WINDOW,
    ExhaustiveSearch,
    format_deviations,
    parse_schedule,
)
from purgatory.virtual.shrinking import MAX_ATTEMPTS, Shrinking
from purgatory.virtual.unhandled import RAISE, check_policy
from purgatory.virtual.world import World

SEEDS: Final = 20
"""The default number of seeds of a marked test."""

MAX_SCHEDULES: Final = 100_000
"""The default limit of an exhaustive search."""

_ARGUMENTS: Final = ("seeds", "schedules", "schedule", "exhaustive", "on_unhandled", "max_steps")
_TEXTS: Final = ("schedule", "on_unhandled")
_OF_WORLDS: Final = ("on_unhandled", "max_steps")


class Plan:
    """The runs of a test, by the arguments of its mark and the options of the command line.

    Args:
        marked: the arguments of its mark; None: a test without a mark, which runs once.
        options: the command line's, which take precedence: ``seeds``, ``seed``, ``schedule``,
            ``without`` and ``plain_network``.

    Raises:
        TypeError, ValueError, WorldError: of an argument that makes no sense.
    """

    def __init__(self, marked: Mapping[str, Any] | None, options: Mapping[str, Any]) -> None:
        self._options = options
        one_run = marked is None
        marked = marked or {}
        for name, value in marked.items():
            if name == "seed":
                raise TypeError(
                    f"the mark takes seeds, the number of runs, and no {name!r}: a single seed is "
                    f"run by pytest --virtual-seed {value}"
                )
            if name not in _ARGUMENTS:
                raise TypeError(f"the mark takes {', '.join(_ARGUMENTS)}, and no {name!r}")
            least = 0 if name == "exhaustive" else 1
            if name not in _TEXTS and (type(value) is not int or value < least):
                raise ValueError(f"{name}={value!r}: a whole number, {least} or more")
        if "seeds" in marked and "schedules" in marked:
            raise TypeError(
                "each seed has a schedule of its own: give seeds or schedules, not both"
            )
        self.world_settings = {name: marked[name] for name in _OF_WORLDS if name in marked}
        """The arguments for each `World`."""
        check_policy(marked.get("on_unhandled", RAISE))
        schedules = marked.get("schedules")
        default = FIFO if schedules is None else MIXED
        self._default_schedule: str = marked.get("schedule", default)
        self._schedule: str = options["schedule"] or self._default_schedule
        parse_schedule(self._schedule, None)
        self.search: ExhaustiveSearch | None = None
        count = options["seeds"] or schedules or marked.get("seeds", SEEDS)
        if "exhaustive" in marked and not options["schedule"]:
            if "schedule" in marked or "seeds" in marked:
                raise TypeError("exhaustive=2 takes each schedule in turn, all with one seed")
            self.search = ExhaustiveSearch(marked["exhaustive"], schedules or MAX_SCHEDULES)
        seed = options["seed"]
        self._begins_plain = schedules is not None and seed is None and not options["schedule"]
        """Whether the first run is in asyncio's order: other orders need not be blamed then."""
        self.seeds: Sequence[int] = range(count)
        if seed is not None or one_run or self.search is not None:
            self.seeds = [seed or 0]

    def runs(self, node_id: str) -> Iterator[RepeatedTest]:
        """Yield each run in turn."""
        first = RepeatedTest(
            node_id,
            self.seeds[0],
            self._options["without"],
            self._options["plain_network"],
            self._schedule,
            self._default_schedule,
        )
        if self.search is None:
            for seed in self.seeds:
                is_plain = self._begins_plain and seed == self.seeds[0]
                yield replace(first, seed=seed, schedule=FIFO if is_plain else self._schedule)
        else:
            for deviations in self.search:
                yield replace(first, schedule=format_deviations(deviations))

    @property
    def result(self) -> str | None:
        """The result of an exhaustive search without a failure; None: there was no search."""
        if self.search is None:
            return None
        count, most = self.search.count, self.search.most
        deviations = f"{most} deviation{'' if most == 1 else 's'}"
        if self.search.is_limited:
            return f"the first {count:,} schedules with at most {deviations} passed, not all"
        if self.search.has_full_window:
            return (
                f"{count:,} schedules with at most {deviations} passed, not all: a choice is of "
                f"the first {WINDOW} callbacks that are ready"
            )
        if self.search.is_complete:
            return f"all schedules passed: {count:,}"
        return f"all schedules with at most {deviations} passed: {count:,}"


_MAX_TEXT_BYTES: Final = 1_000
_MAX_NAME: Final = 120
_NO_FAILURE: Final = (KeyboardInterrupt, SystemExit, pytest.exit.Exception, pytest.skip.Exception)
_MAX_DURATION_RATIO: Final = 5
_MIN_LIMIT_S: Final = 60
"""The limit of an attempt at shrinking is five times the failed run's virtual time, and this."""


class SeededTest:
    """The runs of one test.

    Args:
        item: pytest's item, with the fixture `world`.
        node_id: its id, relative to the folder in which pytest was started.
        plan: its runs.
        max_attempts: the limit of attempts at shrinking; 0: none.
        jobs: how many processes share the runs. An exhaustive search has one, since each of its
            runs decides which come next, and so has a process with several threads.
        makes_worlds: whether it may make worlds without the fixture, and leave them before pytest
            handles a failure.
    """

    def __init__(
        self,
        item: pytest.Function,
        node_id: str,
        plan: Plan,
        max_attempts: int = MAX_ATTEMPTS,
        jobs: int = 1,
        makes_worlds: bool = True,
    ) -> None:
        self._item: Any = item
        self._plan = plan
        self._max_attempts = max_attempts
        self._makes_worlds = makes_worlds and _takes_only_world(item)
        self._own_world = ExitStack()
        """Closes the world that was made here, without the fixture."""
        self._jobs = min(jobs, len(plan.seeds))  # an exhaustive search has one seed
        self._runs = plan.runs(node_id)
        self.current = next(self._runs)
        """The run whose fixtures are set up."""
        self.world: World | None = None
        self.max_elapsed_s: float | None = None
        """The limit of the run, in the world's time."""
        self._has_story = False
        self.sections: list[tuple[str, str]] = []
        """Sections for the report of a failure."""

    def new_world(self) -> World:
        """Return the world of the current run."""
        test, schedule = self.current, self.current.schedule
        if self._plan.search is not None and schedule == FIFO:
            schedule = RECORDED_FIFO
        self.world = World(
            test.seed,
            without=test.without,
            plain_network=test.plain_network,
            schedule=schedule,
            story=self._has_story,
            **self._plan.world_settings,
        )
        self.world.max_elapsed_s = self.max_elapsed_s
        return self.world

    def run(self) -> None:
        """Run the test, whose fixtures are set up for the first run; raise its first failure."""
        __tracebackhide__ = True
        try:
            self._run()
        except BaseException:
            with suppress(Exception):
                self._own_world.close()
            raise
        self._own_world.close()

    def _run(self) -> None:
        __tracebackhide__ = True
        passed, failed_elsewhere = 0, ""
        test = self.current
        while True:
            try:
                if passed:
                    self._set_up(test)
                self._call()
                if self._jobs > 1:
                    self._tear_down()  # before processes are forked
            except _NO_FAILURE:
                raise
            except PropertyError as error:
                self._fail(error, passed)
                raise error.with_traceback(None) from None  # its traceback has no frame of the test
            except BaseException as error:
                self._fail(error, passed)
                raise
            if failed_elsewhere:
                pytest.fail(
                    f"{test.schedule} schedule, seed {test.seed}: passed here, but failed in a "
                    f"process of its own: {failed_elsewhere}.\nSomething besides the seed "
                    "decides the outcome: state that earlier runs left, or chance.",
                    pytrace=False,
                )
            passed += 1
            if self._plan.search is not None and self.world is not None:
                self._plan.search.ran(self.world.choices)
            following = next(self._runs, None)
            if following is not None and self._jobs > 1 and threading.active_count() == 1:
                runs = [following, *self._runs]
                found = self._first_failure(runs)
                if found is None:
                    break
                index, failed_elsewhere = found
                passed += index
                following = runs[index]
            if following is None:
                break
            self._output().discard()
            test = following
        if result := self._plan.result:
            self._item.user_properties.append(("virtual", result))

    def _call(self) -> None:
        __tracebackhide__ = True
        item, world = self._item, self.world
        arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
        function = self.function
        if world is None:
            function(**arguments)
            return
        if iscoroutinefunction(function):
            world.run(function(**arguments))
        else:
            function(**arguments)
        world.check_properties()

    def _first_failure(self, runs: Sequence[RepeatedTest]) -> tuple[int, str] | None:
        """Share runs among forked processes; return the index of the first failure, and its text.

        The death of a process is a failure of its current run.
        """
        from multiprocessing import get_context

        fork = get_context("fork")
        jobs = min(self._jobs, len(runs))
        at, failed = fork.RawArray(ctypes.c_int64, jobs), fork.RawArray(ctypes.c_int64, jobs)
        texts = [fork.RawArray(ctypes.c_char, _MAX_TEXT_BYTES) for _ in range(jobs)]
        failed[:] = [len(runs)] * jobs
        processes: list[Any] = []

        def work(job: int) -> None:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            for index in range(job, len(runs), jobs):
                if index > min(failed):
                    return
                self._output().discard()
                at[job] = index
                try:
                    self._set_up(runs[index])
                    self._call()
                    self._tear_down()
                except BaseException as error:
                    text = "".join(format_exception_only(error)).strip()
                    texts[job].value = text.encode()[: _MAX_TEXT_BYTES - 1]
                    failed[job] = index
                    return

        try:
            for job in range(jobs):
                processes.append(fork.Process(target=work, args=(job,)))
                with warnings.catch_warnings():  # about threads that Python does not know
                    warnings.simplefilter("ignore", DeprecationWarning)
                    processes[-1].start()
            for job, process in enumerate(processes):
                process.join()
                if process.exitcode:
                    failed[job] = at[job]
                    texts[job].value = f"it ended with status {process.exitcode}".encode()
        except BaseException:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
            raise
        index = min(failed)
        if index == len(runs):
            return None
        return index, texts[list(failed).index(index)].value.decode(errors="replace")

    @property
    def function(self) -> Callable[..., Any]:
        """The test, bound to the instance of its class, if any."""
        item = self._item
        holder = item.parent.obj if item.instance is None else item.instance
        function: Callable[..., Any] = getattr(holder, item.originalname)
        return function

    def _set_up(self, test: RepeatedTest) -> None:
        """Tear down the fixtures of the last run, and set them up for another."""
        item = self._item
        self._tear_down()
        self.current, self.world = test, None
        if item.instance is not None:
            item._instance = item._getinstance()
        if self._makes_worlds:
            item.funcargs["world"] = self._own_world.enter_context(self.new_world())
            return
        item._initrequest()
        item.session._setupstate.setup(item)

    def _tear_down(self) -> None:
        item = self._item
        kept = dict(item.stash._storage)
        try:
            self._own_world.close()
        finally:
            self._tear_fixtures_down(kept)

    def _tear_fixtures_down(self, kept: dict[Any, Any]) -> None:
        item = self._item
        try:
            item.session._setupstate.teardown_exact(item.parent)
        finally:
            # Some fixtures, such as tmp_path, remove entries that pytest stored for one teardown.
            item.stash._storage.update(kept)

    # A failure.

    def _fail(self, error: BaseException, passed: int) -> None:
        """Report a failed run, and shrink the failure."""
        world = self.world
        if world is None:
            return
        failure = world_failure(world, self.current, error)
        before = f"{passed:,} passed before this one\n" if passed else ""
        self.sections.append(("virtual world", before + failure.report))
        if self._max_attempts and self._item.get_closest_marker("xfail") is None:
            output = self._output()
            self.max_elapsed_s = _MIN_LIMIT_S + _MAX_DURATION_RATIO * ceil(world.now_s)
            try:
                shrinking = Shrinking(failure, self._attempt, self._max_attempts)
                self.sections.append(("virtual world, shrunk", shrinking.run()))
                if shrinking.is_smaller:  # its report says all that this one does, and less
                    self.sections[0] = ("virtual world", before + failure.summary)
                if not shrinking.interrupted:
                    self._report_story(shrinking.smallest)
                if shrinking.interrupted:
                    self._item.session.shouldstop = "interrupted while a failure was shrunk"
            finally:
                with suppress(Exception, pytest.fail.Exception):
                    self._tear_down()
                output.restore()

    def _report_story(self, failure: WorldFailure) -> None:
        """Run a failed test once more, and report its story if it fails in the same way."""
        self._has_story = True
        try:
            again = self._attempt(failure.test)
        except KeyboardInterrupt:
            self._item.session.shouldstop = "interrupted while the story of a failure was recorded"
            return
        if again is not None and again.kind == failure.kind and self.world is not None:
            text = f"{self.world.story}{self._saved_story(self.world, again)}"
            self.sections.append(("virtual world, story", text))

    def _saved_story(self, world: World, failure: WorldFailure) -> str:
        """Save the story in pytest's cache, if any; return a line with the command to view it."""
        cache = getattr(self._item.config, "cache", None)
        if cache is None:
            return ""
        name = re.sub(r"[^\w.\[\]-]+", "-", self._item.nodeid)[-_MAX_NAME:]
        try:
            path = cache.mkdir("virtual-stories") / f"{name}.story.json"
            world.save_story(
                path,
                title=f"{failure.test.node_id}, seed {failure.test.seed}",
                failure=failure.kind,
                command=failure.test.command,
                report=failure.report,
            )
        except OSError as error:
            return f"\n(The story was not saved for the view: {error})"
        near = os.path.relpath(path)
        return f"\nlook at it: purgatory view {shlex.quote(min(near, str(path), key=len))}"

    def _attempt(self, test: RepeatedTest) -> WorldFailure | None:
        """Run the test once more; return its failure, None if it passed."""
        with suppress(Exception, pytest.fail.Exception):
            self._tear_down()  # errors of the last attempt's teardown are not of this one
        try:
            self._set_up(test)
            self._call()
            self._tear_down()
        except (KeyboardInterrupt, SystemExit, pytest.exit.Exception):
            raise
        except BaseException as error:
            world, limit_s = self.world, self.max_elapsed_s
            # A test may fail in any way at the attempt's limit, also in the original's.
            if world is None or (limit_s is not None and world.now_s >= limit_s):
                return None
            return world_failure(world, test, error)
        return None

    def _output(self) -> _Output:
        return _Output(self._item.config, self._item._report_sections)


def _takes_only_world(item: Any) -> bool:
    """Whether the world is the only fixture that is made for each run of a test."""
    definitions = item._fixtureinfo.name2fixturedefs
    return len(definitions.get("world", ())) == 1 and all(
        name == "world" or all(one.scope != "function" for one in definitions.get(name, ()))
        for name in item._fixtureinfo.names_closure
    )


class _Output:
    """The output that pytest has captured so far, to which shrinking must not add."""

    def __init__(self, config: pytest.Config, sections: list[Any]) -> None:
        self._sections = sections
        find = config.pluginmanager.get_plugin
        capturing, logged = find("capturemanager"), find("logging-plugin")
        self._capturing = capturing if capturing and capturing.is_globally_capturing() else None
        self._handlers = [] if logged is None else [logged.report_handler, logged.caplog_handler]
        self._printed = self._capturing.read_global_capture() if self._capturing else ("", "")
        self._records = [list(handler.records) for handler in self._handlers]

    def discard(self) -> None:
        """Discard the captured output."""
        self._sections.clear()
        for handler in self._handlers:
            if handler.records:
                handler.clear()

    def restore(self) -> None:
        """Replace the output since then by the former one."""
        if self._capturing:
            self._capturing.read_global_capture()
            sys.stdout.write(self._printed[0])
            sys.stderr.write(self._printed[1])
        for handler, records in zip(self._handlers, self._records, strict=True):
            handler.clear()
            for record in records:
                handler.emit(record)


# Coroutine functions in a world.


def keep_pytest_clocks() -> None:
    """Have pytest measure durations by the machine's clock, also in a world."""
    from _pytest import timing

    for name, real in (("time", real_time), ("perf_counter", real_perf_counter)):
        if hasattr(timing, name):
            setattr(timing, name, real)


def in_world(world: World, function: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    """Return a plain function that runs a coroutine function in a world."""

    @wraps(function)
    def run(**arguments: Any) -> Any:
        __tracebackhide__ = True
        return world.run(function(**arguments))

    del run.__wrapped__  # lest pytest take it for a coroutine function
    return run


def fixture_in_world(
    world: World,
    function: Callable[..., AsyncGenerator[Any, None]],
    add_finalizer: Callable[[Callable[[], None]], None],
) -> Any:
    """Return a plain function that runs an asynchronous fixture in a world up to its yield.

    Args:
        function: makes the generator from keyword arguments.
        add_finalizer: takes the function that runs the rest of the generator.
    """

    def run(**arguments: Any) -> Any:
        generator = function(**arguments)
        add_finalizer(lambda: world.run(_teardown_fixture(generator)))
        return world.run(_setup_fixture(generator))

    return run


async def _setup_fixture(generator: AsyncGenerator[Any, None]) -> Any:
    return await anext(generator)


async def _teardown_fixture(generator: AsyncGenerator[Any, None]) -> None:
    async for _ in generator:
        await generator.aclose()
        raise ValueError("an asynchronous fixture must yield once, but this one yielded again")
