"""Signals during a job: what runs is cancelled first, then the exception leaves the block."""

from __future__ import annotations

import signal
from types import FrameType

import pytest

from purgatory.pipeline.signals import cancel_on_signal

pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_signal_cancels_first_and_hides_the_cancelled_jobs_error(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    cancelled: list[bool] = []

    def run_job() -> None:
        with cancel_on_signal(lambda: cancelled.append(True)) as signals:
            try:
                signal.raise_signal(number)
            finally:
                assert len(signals) == 1
                assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
                raise RuntimeError("the job was cancelled")

    before = signal.getsignal(number)
    with pytest.raises(raised):
        run_job()
    assert cancelled == [True]
    assert signal.getsignal(number) == before


def test_block_without_a_signal_raises_its_own_error() -> None:
    with pytest.raises(RuntimeError, match="out of cheese"), cancel_on_signal(pytest.fail):
        raise RuntimeError("out of cheese")


def test_programs_own_handler_is_kept() -> None:
    handled: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        handled.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with cancel_on_signal(pytest.fail) as signals:
            signal.raise_signal(signal.SIGTERM)
        assert (handled, signals) == ([signal.SIGTERM], [])
    finally:
        signal.signal(signal.SIGTERM, before)
