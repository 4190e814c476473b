"""Waiting on an event loop: for a condition, for a threshold, for an operation's outcome."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
import trio

from purgatory import (
    AsyncPurgatory,
    DelayedOperation,
    DelayedOperationPurgatory,
    Outcome,
    PurgatoryFullError,
    WaitCancelledError,
)
from tests.unit.core.probe import core_logs
from tests.unit.event_loop.conftest import new_purgatory, run_ready, run_virtually


class Flagged(DelayedOperation):
    """Completes when it is ready; notes its callbacks."""

    def __init__(self, delay_ms: int = 1_000) -> None:
        super().__init__(delay_ms)
        self.ready = False
        self.calls: list[str] = []

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.calls.append("on_complete")

    def on_expiration(self) -> None:
        self.calls.append("on_expiration")


def test_a_condition_that_holds_is_not_waited_for() -> None:
    async def main() -> tuple[int, dict[str, int]]:
        async with new_purgatory() as purgatory:
            value = await purgatory.wait(["log"], until=lambda: 42, timeout=0.5)
            return value, purgatory.counters.outcomes

    value, outcomes = run_virtually(main)
    assert value == 42
    assert outcomes["immediate"] == 1


def test_wait_returns_the_conditions_result_when_notified() -> None:
    async def main() -> tuple[int, int, list[int]]:
        log: list[int] = []

        def first_of(needed: int) -> int:
            return log[0] if len(log) >= needed else 0

        async with new_purgatory() as purgatory:
            waits = [
                asyncio.create_task(purgatory.wait(["log"], until=partial(first_of, n), timeout=9))
                for n in (1, 2, 5)
            ]
            await run_ready()
            log += [7, 8]
            completed = purgatory.notify("log")
            await run_ready()
            log += [9, 10, 11]
            return completed, purgatory.notify("log"), list(await asyncio.gather(*waits))

    assert run_virtually(main) == (2, 1, [7, 7, 7])


def test_a_wait_times_out_on_the_millisecond_and_not_before() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with new_purgatory() as purgatory:
            start = loop.time()
            with pytest.raises(TimeoutError, match=r"not within 0\.5 s: .* on \['log'\]"):
                await purgatory.wait(["log"], until=lambda: False, timeout=0.5)
            assert purgatory.watched == 0
            return loop.time() - start

    assert 0.5 <= run_virtually(main) <= 0.501


def test_repr_and_timeouts_name_purgatory_and_keys() -> None:
    async def main() -> None:
        async with AsyncPurgatory("Fetch") as purgatory:
            waiting = asyncio.create_task(
                purgatory.wait(["log:7"], until=lambda: False, timeout=0.5)
            )
            await run_ready()
            assert repr(purgatory) == "<AsyncPurgatory 'Fetch': 1 pending>"
            with pytest.raises(TimeoutError) as raised:
                await waiting
            assert str(raised.value) == (
                "purgatory 'Fetch': not within 0.5 s: the condition on ['log:7']"
            )
        assert repr(purgatory) == "<AsyncPurgatory 'Fetch' closed: 0 pending>"

    asyncio.run(main())
    with DelayedOperationPurgatory("Produce") as threaded:
        assert repr(threaded) == "<DelayedOperationPurgatory 'Produce': 0 pending>"
    assert repr(threaded) == "<DelayedOperationPurgatory 'Produce' closed: 0 pending>"


@pytest.mark.parametrize("timeout", [0, -1, 0.0])
def test_a_timeout_of_nothing_checks_once(timeout: float) -> None:
    async def main() -> list[bool]:
        checked: list[bool] = []
        async with new_purgatory() as purgatory:
            with pytest.raises(TimeoutError):
                await purgatory.wait(["log"], lambda: checked.append(True), timeout)
        return checked

    assert run_virtually(main)


def test_wait_without_a_timeout_lasts_for_days() -> None:
    async def main() -> str:
        said: list[str] = []
        async with new_purgatory() as purgatory:
            wait = asyncio.create_task(purgatory.wait(["log"], lambda: said and said[0]))
            await asyncio.sleep(10 * 86_400)
            assert not wait.done()
            assert purgatory.core.timer.size == 0  # no timeout was set
            said.append("at last")
            purgatory.notify("log")
            return str(await wait)

    assert run_virtually(main) == "at last"


@pytest.mark.parametrize(
    ("timeout", "error"), [(float("nan"), ValueError), ("soon", TypeError)], ids=["nan", "text"]
)
def test_a_timeout_that_is_no_number_is_refused(timeout: float, error: type[Exception]) -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            with pytest.raises(error):
                await purgatory.wait(["log"], lambda: False, timeout)
            assert purgatory.watched == purgatory.num_delayed == 0

    run_virtually(main)


def test_the_error_of_a_condition_reaches_its_waiter_and_no_other() -> None:
    async def main() -> bool:
        broken = False

        def until() -> bool:
            if broken:
                raise LookupError("the log is gone")
            return False

        ready = False
        async with new_purgatory() as purgatory:
            faulty = asyncio.create_task(purgatory.wait(["log"], until, 1))
            sound = asyncio.create_task(purgatory.wait(["log"], lambda: ready, 1))
            await run_ready()
            broken = ready = True
            purgatory.notify("log")
            with pytest.raises(LookupError, match="the log is gone"):
                await faulty
            assert purgatory.counters.callback_errors["try_complete"] == 1
            return await sound

    with core_logs() as logs:
        assert run_virtually(main)
    assert [entry["event"] for entry in logs] == ["purgatory_closed"]  # the error is told once


def test_conditions_error_is_logged_if_its_waiter_was_cancelled() -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            broken = False
            wait = asyncio.create_task(purgatory.wait(["log"], lambda: broken and 1 / 0))
            await run_ready()
            broken = True
            purgatory.notify("log")
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait

    with core_logs() as logs:
        run_virtually(main)
    (failure,) = [entry for entry in logs if entry["event"] == "callback_failed"]
    assert isinstance(failure["exc_info"], ZeroDivisionError)


def test_a_condition_on_several_keys_leaves_them_all_at_once() -> None:
    async def main() -> tuple[int, int]:
        ready = False
        async with new_purgatory() as purgatory:
            wait = asyncio.create_task(purgatory.wait(["a", "b", "c"], lambda: ready, 1))
            await run_ready()
            watched = purgatory.watched
            ready = True
            purgatory.notify("b")
            after = purgatory.watched
            await wait
            return watched, after

    assert run_virtually(main) == (3, 0)


def test_a_threshold_is_waited_for_and_its_value_returned() -> None:
    async def main() -> list[int]:
        async with new_purgatory() as purgatory:
            waits = [
                asyncio.create_task(purgatory.wait_for_threshold("log", n, timeout=5))
                for n in (10, 20, 30)
            ]
            await run_ready()
            assert purgatory.advance("log", 9) == 0
            assert purgatory.advance("log", 25) == 2
            assert purgatory.advance("log", 99) == 1
            return list(await asyncio.gather(*waits))

    assert run_virtually(main) == [25, 25, 99]


def test_a_threshold_that_was_reached_before_is_not_waited_for() -> None:
    async def main() -> int:
        async with new_purgatory() as purgatory:
            purgatory.advance("log", 50)
            return await purgatory.wait_for_threshold("log", 42, timeout=0)

    assert run_virtually(main) == 50


def test_timeout_of_a_threshold_names_the_last_value() -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            purgatory.advance("log", 41)
            with pytest.raises(TimeoutError, match=r"'log' to reach 42 \(it is 41\)"):
                await purgatory.wait_for_threshold("log", 42, timeout=0.1)

    run_virtually(main)


def test_an_operation_resumes_its_handler_with_its_outcome() -> None:
    async def main() -> list[tuple[Outcome, list[str]]]:
        results = []
        async with new_purgatory() as purgatory:
            done, late, ready = Flagged(), Flagged(delay_ms=50), Flagged()
            ready.ready = True
            for operation in (done, late, ready):
                wait = asyncio.create_task(purgatory.submit(operation, ["key"]))
                await run_ready()
                if operation is done:
                    operation.ready = True
                    purgatory.notify("key")
                results.append((await wait, operation.calls))
        return results

    assert run_virtually(main) == [
        (Outcome.COMPLETED, ["on_complete"]),
        (Outcome.EXPIRED, ["on_complete", "on_expiration"]),
        (Outcome.COMPLETED, ["on_complete"]),
    ]


def test_an_operation_may_wait_for_keys_and_for_thresholds() -> None:
    async def main() -> list[int]:
        async with new_purgatory() as purgatory:
            operation = Flagged()
            wait = asyncio.create_task(
                purgatory.submit(operation, ["epoch"], thresholds={"log": 10})
            )
            await run_ready()
            counts = [purgatory.watched, purgatory.advance("log", 9)]
            operation.ready = True
            counts += [purgatory.advance("log", 10), purgatory.watched]
            await wait
            return counts

    assert run_virtually(main) == [2, 0, 1, 0]


def test_a_full_purgatory_refuses_and_takes_again() -> None:
    async def main() -> dict[str, int]:
        async with new_purgatory(max_pending=2) as purgatory:
            waits = [asyncio.create_task(purgatory.wait_for_threshold("log", n, 1)) for n in (1, 2)]
            await run_ready()
            with pytest.raises(PurgatoryFullError, match="max_pending=2"):
                await purgatory.wait(["x"], lambda: False, 1)
            assert await purgatory.wait(["x"], lambda: True, 1)  # needs no place
            purgatory.advance("log", 1)
            waits.append(asyncio.create_task(purgatory.wait_for_threshold("log", 3, 1)))
            await run_ready()
            purgatory.advance("log", 3)
            await asyncio.gather(*waits)
            return purgatory.counters.outcomes

    outcomes = run_virtually(main)
    assert outcomes["rejected"] == 1
    assert outcomes["completed"] == 3


def test_a_key_that_goes_away_ends_its_waits() -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            failing, dropped, ended = (
                asyncio.create_task(purgatory.wait([key], lambda: False, 1))
                for key in ("failing", "dropped", "completing")
            )
            completing = asyncio.create_task(purgatory.submit(Flagged(), ["completing"]))
            await run_ready()
            purgatory.fail_for_key("failing", ConnectionError("broker 2 died"))
            purgatory.complete_for_key("completing")
            purgatory.cancel_for_key("dropped")
            with pytest.raises(ConnectionError, match="broker 2 died"):
                await failing
            with pytest.raises(WaitCancelledError, match=r"on \['dropped'\]"):
                await dropped
            with pytest.raises(WaitCancelledError, match=r"on \['completing'\]"):
                await ended
            assert await completing is Outcome.COMPLETED
            assert purgatory.watched == 0

    run_virtually(main)


def test_error_without_a_loop_names_where_to_create_one() -> None:
    with pytest.raises(RuntimeError, match=r"AsyncPurgatory\('Fetch'\) needs a running event loop"):
        AsyncPurgatory("Fetch")


def test_error_on_trio_names_the_way_to_wait_there() -> None:
    async def main() -> None:
        AsyncPurgatory("Fetch")

    with pytest.raises(RuntimeError, match=r"this one is trio's.*DelayedOperationPurgatory"):
        trio.run(main)


def test_waiting_in_a_thread_works_on_trio() -> None:
    class Flag(DelayedOperation):
        raised = False

        def try_complete(self) -> bool:
            return self.raised and self.force_complete()

    async def main(purgatory: DelayedOperationPurgatory) -> None:
        flag = Flag(60_000)
        purgatory.try_complete_else_watch(flag, ["flag"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.to_thread.run_sync, flag.wait))
            flag.raised = True
            assert purgatory.check_and_complete("flag") == 1

    with DelayedOperationPurgatory("Fetch") as purgatory:
        trio.run(main, purgatory)


def test_error_of_a_condition_reaches_the_waiter_with_traceback() -> None:
    def divide() -> float:
        return 1 / 0

    async def main() -> list[str]:
        async with new_purgatory() as purgatory:
            with pytest.raises(ZeroDivisionError) as caught:
                await purgatory.wait(["log"], until=divide)
            return [entry.name for entry in caught.traceback]

    assert run_virtually(main)[-1] == "divide"


def test_a_coroutine_function_is_no_condition() -> None:
    async def ready() -> bool:
        return True

    async def main() -> None:
        async with new_purgatory() as purgatory:
            with pytest.raises(
                TypeError, match="ready returned a coroutine: pass a plain function"
            ):
                await purgatory.wait(["log"], until=ready)  # type: ignore[unused-coroutine]

    run_virtually(main)


def test_a_timeout_must_be_a_number_of_seconds() -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            with pytest.raises(
                TypeError, match="a number of seconds, a timedelta, or None for ever, not '1'"
            ):
                await purgatory.wait(["log"], until=lambda: True, timeout="1")  # type: ignore[arg-type]

    run_virtually(main)
