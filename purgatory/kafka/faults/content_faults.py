"""What can be wrong in answers: errors, throttle times, epochs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from purgatory.kafka.error_numbers import ERROR_NUMBERS
from purgatory.kafka.faults.fault_arguments import error_number
from purgatory.kafka.faults.message_faults import MessageFault

CHOICES = ("topic", "partition", "group_id", "transactional_id")
"""By what those faults choose that strike some of what a request asks."""

_ASKED_OF_COORDINATORS = frozenset(
    {
        "add_offsets_to_txn",
        "add_partitions_to_txn",
        "alter_share_group_offsets",
        "consumer_group_describe",
        "consumer_group_heartbeat",
        "delete_groups",
        "delete_share_group_offsets",
        "describe_groups",
        "describe_share_group_offsets",
        "describe_transactions",
        "end_txn",
        "heartbeat",
        "init_producer_id",
        "join_group",
        "leave_group",
        "list_groups",
        "list_transactions",
        "offset_commit",
        "offset_delete",
        "offset_fetch",
        "share_group_describe",
        "share_group_heartbeat",
        "sync_group",
        "txn_offset_commit",
    }
)


@dataclass(frozen=True)
class ErrorFault(MessageFault):
    """It strikes requests, and has them answered with an error.

    Of all that a request asks only what is of this ``group_id`` or ``transactional_id``, where
    these are given; the rest is done and answered as usual.
    """

    group_id: str | None = field(default=None, kw_only=True)
    transactional_id: str | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def error_code(self) -> int:
        """The number of the error."""

    @property
    def is_carried_out(self) -> bool:
        """Whether what is asked is done before the error is told."""
        return False

    @property
    def chosen(self) -> Mapping[str, object]:
        """What a request has to be about, by names of ``CHOICES``; empty: anything."""
        given = {name: getattr(self, name, None) for name in CHOICES}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Answer(ErrorFault, kind="answer"):
    """Answer requests with an error, by its Kafka name.

    ``error``: such as "NOT_LEADER_OR_FOLLOWER". Without ``after`` nothing of what was asked is
    done. With it all is done first, and only then the error told. A ``topic`` and a ``partition``
    leave what a request asks about others as it is.
    """

    is_simulated = False
    error: str = field(kw_only=True)
    after: bool = field(default=False, kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
    partition: int | None = field(default=None, kw_only=True)

    @property
    def error_code(self) -> int:
        return error_number(self.error)

    @property
    def is_carried_out(self) -> bool:
        return self.after


@dataclass(frozen=True)
class LoadCoordinator(ErrorFault, kind="load_coordinator"):
    """Have coordinators load: who asks them is told COORDINATOR_LOAD_IN_PROGRESS.

    Those of groups and of transactions, or of one ``group_id`` or ``transactional_id``.
    """

    is_simulated = False

    def concerns(self, broker: int, api: str, client_id: str | None) -> bool:
        return api in _ASKED_OF_COORDINATORS and super().concerns(broker, api, client_id)

    @property
    def error_code(self) -> int:
        return ERROR_NUMBERS["COORDINATOR_LOAD_IN_PROGRESS"]


@dataclass(frozen=True)
class Throttle(MessageFault, kind="throttle"):
    """Tell clients to wait: ``throttle_ms`` as the throttle time in answers."""

    is_simulated = False
    throttle_ms: int = field(kw_only=True)


@dataclass(frozen=True)
class TurnBackEpochs(MessageFault, kind="turn_back_epochs"):
    """Have leader epochs go back: answers tell ones that are lower by ``epochs``.

    Those of all topics, or of one ``topic``, wherever an answer has any: of Metadata, ListOffsets,
    Fetch, OffsetFetch ...
    """

    is_simulated = False
    epochs: int = field(default=1, kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
