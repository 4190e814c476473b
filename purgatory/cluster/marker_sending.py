"""How a broker's coordinator of transactions brings markers to the brokers that lead.

Ground rules: those of `PeerCalls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from purgatory.cluster.cluster_metadata import ClusterMetadata, Peer
from purgatory.cluster.peer_calls import PeerCalls
from purgatory.kafka import ErrorCode, RecordBatch, TopicPartition, write_markers

Codes = Mapping[TopicPartition, ErrorCode]


class MarkerSending:
    """The cluster, as the coordinator of one broker sees it (`MarkerRoutes`).

    Args:
        calls: how its broker asks others.
        cluster: its cluster.
    """

    def __init__(self, calls: PeerCalls, cluster: ClusterMetadata) -> None:
        self._calls = calls
        self._cluster = cluster

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """Return who leads a partition, -1 if nobody does now; None: there is no such one."""
        state = self._cluster.controller.state_of(topic_partition)
        return None if state is None else state.leader

    def send_markers(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        """Bring markers to a broker; ``respond`` is told what became of them.

        Where the link to it is cut, and another one leads by then, they are refused: whoever leads
        is asked next. One that was written before, and is written again, ends nothing else: until
        all are, the producer has no other transaction.
        """
        self._calls.begin(self._send(broker_id, markers, respond))

    async def _send(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        def write(leader: Peer, written: Callable[[Codes], object]) -> None:
            write_markers(leader.manager, leader.groups, markers, written)

        def has_moved() -> bool:
            return any(self.leader_of(one) != broker_id for one in markers)

        codes = await self._calls.ask(broker_id, write, has_moved)
        refused = dict.fromkeys(markers, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        respond({**refused, **(codes or {})})
