"""What the trace tells of groups and transactions: their states, as they change.

Ground rules: everything runs on the engine's thread. It looks after each event, since that is where
a state changes; a run without a trace has nobody who looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from purgatory.kafka import TopicPartition
from purgatory.kafka.topics import PartitionState
from purgatory.kafka.transactions.transaction_metadata import TransactionState
from purgatory.simulation.engine import NS_PER_US
from purgatory.simulation.simulated_broker import Broker
from purgatory.simulation.simulated_groups import offsets_partition_of
from purgatory.simulation.simulated_transactions import transactions_partition_of
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import ChangeRow

_TOLD_AS = {
    TransactionState.ONGOING: "begun",
    TransactionState.PREPARE_COMMIT: "committing",
    TransactionState.PREPARE_ABORT: "aborting",
    TransactionState.PREPARE_EPOCH_FENCE: "fencing",
}

_Described = tuple[int, str, int, tuple[object, ...]]
"""Of a group or a transaction: its broker, state, generation or epoch, and members."""


class CoordinatedChanges:
    """Follows the groups and transactions of a cluster.

    Args:
        brokers: which coordinate them.
        states: what the controller decides, as it goes on.
        now_ns: the time since the start of the run.
        write: takes the rows.
    """

    def __init__(
        self,
        brokers: Sequence[Broker],
        states: Mapping[TopicPartition, PartitionState],
        now_ns: Callable[[], int],
        write: Callable[[ChangeRow], object],
    ) -> None:
        self._brokers = brokers
        self._states = states
        self._now_ns = now_ns
        self._write = write
        self._described: dict[tuple[str, str], _Described] = {}

    def look(self) -> None:
        """Write what has become of them. O(groups + transactional ids)."""
        seen = dict(self._coordinated())
        for key, told in seen.items():
            if self._described.get(key) != told:
                self._describe(key, told)
        if seen.keys() != self._described.keys():
            for key in self._described.keys() - seen.keys():
                broker, _, number, _ = self._described[key]
                gone = rows.GONE if key[0] == rows.GROUP else rows.ENDED
                self._describe(key, (broker, gone, number, ()))
        self._described = seen

    def _describe(self, key: tuple[str, str], told: _Described) -> None:
        change, name = key
        broker, state, number, names = told
        self._write(
            ChangeRow(
                self._now_ns() // NS_PER_US,
                change,
                broker,
                name,
                number=number,
                state=state,
                names=names,
            )
        )

    def _coordinated(self) -> Iterable[tuple[tuple[str, str], _Described]]:
        """All groups and transactions, as the broker tells that is to coordinate them."""
        for broker in self._brokers:
            if not broker.alive:
                continue
            if broker.groups is not None:
                for name, group in broker.groups.groups.items():
                    if self._states[offsets_partition_of(name)].leader == broker.id:
                        told = broker.id, group.state.value, group.generation, (*group.members,)
                        yield (rows.GROUP, name), told
            if broker.transactions is not None:
                for name, record in broker.transactions.all_transactions():
                    leader = self._states[transactions_partition_of(name)].leader
                    if leader == broker.id and record.state in _TOLD_AS:
                        state = _TOLD_AS[record.state]
                        yield (
                            (rows.TRANSACTION, name),
                            (broker.id, state, record.producer_epoch, ()),
                        )
