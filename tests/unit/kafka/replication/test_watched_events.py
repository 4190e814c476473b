"""Events check only the operations that they may complete, also after changes of leadership."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from purgatory.kafka import (
    AppendOrigin,
    ErrorCode,
    FetchCase,
    FetchIsolation,
    LogConfig,
    RecordBatch,
    TransactionResult,
)
from tests.unit.kafka.conftest import TP

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker

WAITING = 1_000
LOG_END = FetchIsolation.LOG_END
COMMITTED = FetchIsolation.TXN_COMMITTED


@pytest.fixture
def roomy(make_broker: Callable[..., Broker]) -> Broker:
    """Leads the partition, whose log has one large segment with a record in it."""
    broker = make_broker(0)
    broker.lead()
    broker.produce(acks=1)
    broker.followers_fetch(1, 1, 2)
    return broker


def checks(broker: Broker) -> int:
    return broker.fetches.counters.checks + broker.produces.counters.checks


def test_append_checks_none_of_a_thousand_unfilled_fetches(roomy: Broker) -> None:
    for isolation in FetchIsolation:
        for number in range(WAITING):
            roomy.fetch(1, isolation=isolation, min_bytes=5_000 + number, tps=(TP,))
    roomy.produce(acks=1)  # the first look at this segment
    roomy.followers_fetch(2, 1, 2)
    before = checks(roomy)

    for offset in range(3, 8):
        roomy.produce(acks=1)
        roomy.followers_fetch(offset, 1, 2)

    assert checks(roomy) == before
    assert roomy.fetches.num_delayed == 3 * WAITING


def test_an_append_checks_the_fetches_that_it_fills(roomy: Broker) -> None:
    answers = [roomy.fetch(1, 1, min_bytes=100 + 100 * (number // 10)) for number in range(100)]
    roomy.produce(acks=1)
    before = checks(roomy)

    roomy.produce(acks=1)

    assert checks(roomy) == before + 10
    assert [answer.given for answer in answers] == [True] * 20 + [False] * 80


def test_a_high_watermark_checks_the_produces_below_it(roomy: Broker) -> None:
    answers = [roomy.produce() for _ in range(WAITING)]
    before = checks(roomy)

    roomy.followers_fetch(11, 1, 2)

    assert checks(roomy) == before + 10
    assert [answer.given for answer in answers] == [True] * 10 + [False] * (WAITING - 10)


def test_produce_waits_for_each_of_its_partitions(leader: Broker) -> None:
    other = TP._replace(partition=1)
    leader.lead(tp=other)
    answer = leader.produce(tps=(TP, other))

    leader.followers_fetch(1, 1, 2)
    assert not answer.given
    for replica_id in (1, 2):
        leader.fetch(1, replica_id, max_wait_ms=0, tps=(other,))

    assert answer.of(TP).error is answer.of(other).error is ErrorCode.NONE


# ---- values that fall with a change of leadership


def shorten(leader: Broker, to: int) -> None:
    """Broker 1 leads for a while, and broker 0 truncates the records that it lacks."""
    epoch = leader.replica().leader_epoch
    leader.manager.become_follower(TP, 1, epoch + 1, (0, 1, 2))
    leader.replica().log.truncate_to(to)
    leader.lead(epoch=epoch + 2)


def test_produce_ignores_the_watermark_of_a_former_leadership(roomy: Broker) -> None:
    for _ in range(99):
        roomy.produce(acks=1)
    roomy.followers_fetch(100, 1, 2)
    shorten(roomy, to=50)
    answer = roomy.produce(RecordBatch(0, 30, 100))
    assert roomy.replica().high_watermark == 50

    roomy.followers_fetch(79, 1, 2)
    assert not answer.given

    roomy.followers_fetch(80, 1, 2)

    assert answer.of().error is ErrorCode.NONE


def test_fetch_counts_no_bytes_of_an_earlier_leadership(roomy: Broker) -> None:
    for _ in range(99):
        roomy.produce(acks=1)
    shorten(roomy, to=50)
    answer = roomy.fetch(50, 1, min_bytes=200)
    before = checks(roomy)

    roomy.produce(acks=1)
    assert not answer.given
    assert checks(roomy) == before
    roomy.produce(acks=1)

    assert answer.given


def test_produce_and_fetch_end_with_their_leadership(leader: Broker) -> None:
    leader.produce(acks=1)
    appended = leader.produce()
    answer = leader.fetch(2, 1, min_bytes=200)
    operation = leader.waiting(leader.fetches)

    leader.manager.become_follower(TP, 1, 2)

    assert appended.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert operation.case is FetchCase.NOT_LEADER
    assert answer.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_returning_leader_has_no_former_thresholds(leader: Broker) -> None:
    leader.produce()
    leader.fetch(1, 1, min_bytes=300)
    leader.followers_fetch(1, 1, 2)
    assert leader.produces.value(TP) == 1
    leader.manager.become_follower(TP, 1, 2)

    leader.lead(epoch=3)

    assert leader.produces.value(TP) is None
    assert not leader.fetches._state.values


def test_deleted_partition_leaves_no_threshold_values(leader: Broker) -> None:
    leader.fetch(0, 1, min_bytes=5_000)
    leader.produce()
    leader.followers_fetch(1, 1, 2)
    assert leader.produces.value(TP) is not None

    leader.manager.delete_topic("topic")

    assert not leader.produces._state.values
    assert not leader.fetches._state.values


# ---- events without a threshold


def test_a_fetch_counts_no_more_than_it_takes_from_a_partition(roomy: Broker) -> None:
    roomy.produce(acks=1)
    answer = roomy.fetch(2, 1, min_bytes=200, partition_max_bytes=150)

    for _ in range(5):
        roomy.produce(acks=1)

    assert not answer.given
    roomy.pass_time(500)
    assert answer.given


@pytest.mark.parametrize("isolation", FetchIsolation)
def test_a_new_segment_ends_the_wait_at_the_first_move_into_it(
    make_broker: Callable[..., Broker], isolation: FetchIsolation
) -> None:
    broker = make_broker(0, log_config=LogConfig(segment_bytes=300))
    broker.lead()
    broker.fetch(0, min_bytes=5_000)  # an operation waits from the start: each event is looked at
    for _ in range(3):
        broker.produce(acks=1)
    broker.followers_fetch(3, 1, 2)
    answer = broker.fetch(3, isolation=isolation, min_bytes=5_000)

    broker.produce(acks=1)
    assert answer.given == (isolation is LOG_END)
    broker.followers_fetch(4, 1, 2)

    assert answer.given


def test_jump_into_a_new_segment_ends_the_wait(leader: Broker) -> None:
    """A transaction ends, and the records behind its first one become visible."""
    opening = RecordBatch(0, 1, 100, -1, 7, 0, 0, transactional=True)
    marker = RecordBatch(0, 1, 50, -1, 7, 0, transactional=True, control=TransactionResult.COMMIT)
    leader.fetch(0, isolation=COMMITTED, min_bytes=5_000)
    leader.produce(opening, acks=1)
    answer = leader.fetch(0, isolation=COMMITTED, min_bytes=5_000)
    for _ in range(3):
        leader.produce(acks=1)
    leader.followers_fetch(4, 1, 2)
    leader.produce(marker, acks=1, origin=AppendOrigin.COORDINATOR)
    assert not answer.given

    leader.followers_fetch(5, 1, 2)

    assert answer.given
