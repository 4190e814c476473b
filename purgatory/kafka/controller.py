"""The controller: topics, leaders and followers, in-sync replicas.

A cluster has one, which does not fail, where Kafka has a quorum. Each change of a partition's
leader has a new epoch. The controller decides; its driver reports live brokers, and sends
notifications to them: at once, or over a network.

Ground rules
------------
* Only the cluster's loop touches it, and no call blocks.
* A partition's ISR changes only here: leaders propose, the controller agrees.
* Changes are saved (``on_change``) before any broker is notified: no ISR may acknowledge a record
  that is lost after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import Protocol
from uuid import UUID

from purgatory.core.recent_errors import Logger
from purgatory.kafka import ErrorCode, KafkaError, ReplicaManager, TopicPartition
from purgatory.kafka.client_quotas import ClientQuotas, QuotaChange, QuotaEntity, QuotaMeter
from purgatory.kafka.features import FEATURES, Feature
from purgatory.kafka.topics import NO_LEADER, LogEnd, PartitionState, Topic

_UNCLEAN = "unclean.leader.election.enable"
_log = Logger("purgatory.kafka")


class Member(Protocol):
    """A broker, as the controller sees it."""

    def update_role(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Become leader or follower according to ``state``."""

    def drop_topic(self, topic: str) -> None:
        """Delete a topic with its records."""

    def drop_replica(self, topic_partition: TopicPartition) -> None:
        """Delete a replica that was moved to other brokers."""

    def set_live_brokers(self, broker_ids: Sequence[int]) -> None:
        """Update the live brokers."""

    def apply_settings(self, topic: str | None) -> None:
        """Apply the current settings of a topic, or of the broker (None)."""


class Controller:
    """Keeps the cluster's metadata.

    Args:
        broker_ids: all brokers; none is alive at first.
        unclean: the default of ``unclean.leader.election.enable``: whether a replica that is not in
            sync may lead when no other is left.
        new_topic_id: makes a unique id; None: they are numbered.
        features: those that the cluster supports.
    """

    def __init__(
        self,
        broker_ids: Sequence[int],
        unclean: bool = False,
        new_topic_id: Callable[[], UUID] | None = None,
        features: Mapping[str, Feature] = FEATURES,
    ) -> None:
        self.broker_ids = tuple(broker_ids)
        self.unclean = unclean
        self.topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        numbers = count(1)
        self._new_topic_id = new_topic_id or (lambda: UUID(int=next(numbers)))
        self.topics_version = 0
        """Incremented whenever topics or partitions are created or deleted."""
        self.broker_settings: dict[int, dict[str, str]] = {}
        """Dynamic settings per broker, by the names of topic settings."""
        self.default_settings: dict[str, str] = {}
        """Dynamic default settings of all brokers."""
        self.group_settings: dict[str, dict[str, str]] = {}
        """Dynamic settings per group."""
        self.client_metrics: dict[str, dict[str, str]] = {}
        """The settings of subscriptions to clients' metrics, by name."""
        self.client_quotas = ClientQuotas()
        self.mutations = QuotaMeter(self.client_quotas)
        self.features = features
        self.feature_levels = {name: feature.level for name, feature in features.items()}
        """The finalized levels."""
        self.feature_updates = 0
        self.live: dict[int, Member] = {}
        self.active_controller: int | None = None
        """The broker that clients are told to be the controller; None or dead: the least live."""
        self.elections = 0
        """The number of elections that found a leader."""
        self.unclean_elections = 0
        self.partition_count = 0
        self._next_first_replica = 0
        self.on_change: Callable[[], bool] = lambda: True
        self.on_elected: Callable[[TopicPartition, PartitionState], object] = lambda *_: None
        self.on_topic_deleted: Callable[[str], object] = lambda _: None
        self.blocks_isr: Callable[[TopicPartition, int], bool] = lambda *_: False

    # Topics.

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int,
        configs: Mapping[str, str] | None = None,
    ) -> Topic:
        """Create a topic, its replicas spread over the brokers, and notify them."""
        assert name not in self.topics, "the caller has looked"
        topic = Topic(name, [], dict(configs or {}), self._new_topic_id())
        self._add_topic(topic)
        self._add_partitions(topic, self._assign_replicas(partitions, replication))
        return topic

    def create_assigned_topic(
        self, name: str, replicas: Sequence[tuple[int, ...]], configs: Mapping[str, str]
    ) -> Topic:
        """Create a topic with an assignment of replicas, the preferred leader first."""
        assert name not in self.topics, "the caller has looked"
        topic = Topic(name, [], dict(configs), self._new_topic_id())
        self._add_topic(topic)
        self._add_partitions(topic, replicas)
        return topic

    def create_partitions(self, name: str, total: int) -> None:
        """Increase a topic's partitions to ``total``."""
        topic = self.topics[name]
        replication = len(topic.partitions[0].replicas)
        self._add_partitions(
            topic, self._assign_replicas(total - len(topic.partitions), replication)
        )

    def create_assigned_partitions(self, name: str, replicas: Sequence[tuple[int, ...]]) -> None:
        """Add partitions with these replicas, the preferred leader first."""
        self._add_partitions(self.topics[name], replicas)

    def delete_topic(self, name: str) -> None:
        """Forget a topic with its records."""
        topic = self.topics.pop(name)
        self._names.pop(topic.topic_id, None)
        self.partition_count -= len(topic.partitions)
        self.topics_version += 1
        for member in list(self.live.values()):
            member.drop_topic(name)
        self.on_topic_deleted(name)
        self.on_change()

    def _add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name

    # Settings.

    def change_topic_settings(self, name: str, settings: Mapping[str, str]) -> bool:
        """Replace all settings of a topic; False if they could not be saved."""
        topic = self.topics[name]
        previous, topic.configs = topic.configs, dict(settings)
        if not self.on_change():
            topic.configs = previous
            return False
        for member in list(self.live.values()):
            member.apply_settings(name)
        self._elect_unclean()
        return True

    def change_group_settings(self, group_id: str, settings: Mapping[str, str]) -> bool:
        """Replace all settings of a group; False if they could not be saved."""
        return self._replace("group_settings", _with(self.group_settings, group_id, settings))

    def change_client_metrics(self, name: str, settings: Mapping[str, str]) -> bool:
        """Replace all settings of a subscription; False if they could not be saved."""
        return self._replace("client_metrics", _with(self.client_metrics, name, settings))

    def change_features(self, levels: Mapping[str, int]) -> bool:
        """Change the levels of some features; False if they could not be saved."""
        self.feature_updates += 1
        return self._replace("feature_levels", {**self.feature_levels, **levels})

    def _replace(self, attribute: str, value: object) -> bool:
        previous = getattr(self, attribute)
        setattr(self, attribute, value)
        if self.on_change():
            return True
        setattr(self, attribute, previous)
        return False

    def change_quotas(self, entity: QuotaEntity, changes: Sequence[QuotaChange]) -> bool:
        """Change some quotas of an entity; False if they could not be saved."""
        previous = dict(self.client_quotas.entities)
        self.client_quotas.alter(entity, changes)
        if not self.on_change():
            self.client_quotas.entities = previous
            return False
        return True

    def change_broker_settings(self, broker_id: int | None, settings: Mapping[str, str]) -> bool:
        """Replace all settings of a broker, or the default ones (None); False if not saved."""
        if broker_id is None:
            previous, self.default_settings = self.default_settings, dict(settings)
        else:
            previous = self.broker_settings.get(broker_id, {})
            self.broker_settings[broker_id] = dict(settings)
        if not self.on_change():
            if broker_id is None:
                self.default_settings = previous
            else:
                self.broker_settings[broker_id] = previous
            return False
        for number, member in list(self.live.items()):
            if broker_id in (None, number):
                member.apply_settings(None)
        self._elect_unclean()
        return True

    def _assign_replicas(self, count: int, replication: int) -> list[tuple[int, ...]]:
        """Return the replicas of new partitions, on live brokers first.

        Missing ones go to dead brokers, out of sync, as Kafka's ``StripedReplicaPlacer`` falls back
        on fenced brokers.
        """
        live = [broker for broker in self.broker_ids if broker in self.live]
        dead = [broker for broker in self.broker_ids if broker not in self.live]
        first = self._next_first_replica
        self._next_first_replica += count
        return [
            (*_rotated(live, first + number), *_rotated(dead, first + number))[:replication]
            for number in range(count)
        ]

    def _add_partitions(self, topic: Topic, replicas: Sequence[tuple[int, ...]]) -> None:
        first = len(topic.partitions)
        for assignment in replicas:
            isr = tuple(broker for broker in assignment if broker in self.live)
            leader = isr[0] if isr else NO_LEADER
            topic.partitions.append(PartitionState(assignment, isr or assignment, leader))
        self.partition_count += len(replicas)
        self.topics_version += 1
        self._notify(
            [
                (TopicPartition(topic.name, number), state)
                for number, state in enumerate(topic.partitions[first:], first)
            ]
        )

    def restore(
        self,
        topics: Sequence[Topic],
        default_settings: Mapping[str, str] | None = None,
        broker_settings: Mapping[int, Mapping[str, str]] | None = None,
        group_settings: Mapping[str, Mapping[str, str]] | None = None,
        client_metrics: Mapping[str, Mapping[str, str]] | None = None,
        client_quotas: Mapping[QuotaEntity, Mapping[str, float]] | None = None,
        feature_levels: Mapping[str, int] | None = None,
    ) -> None:
        """Load saved metadata; the partitions have no leaders yet."""
        self.default_settings = dict(default_settings or {})
        self.broker_settings = {
            broker_id: dict(settings) for broker_id, settings in (broker_settings or {}).items()
        }
        self.group_settings = {
            group_id: dict(settings) for group_id, settings in (group_settings or {}).items()
        }
        self.client_metrics = {
            name: dict(settings) for name, settings in (client_metrics or {}).items()
        }
        self.client_quotas.entities = {
            entity: dict(quotas) for entity, quotas in (client_quotas or {}).items()
        }
        self.feature_levels = {**self.feature_levels, **(feature_levels or {})}
        for topic in topics:
            self._add_topic(topic)
        self.partition_count = sum(len(topic.partitions) for topic in self.topics.values())
        self.topics_version += 1

    # Brokers.

    def reconcile_logs(self, logs: Mapping[int, Mapping[TopicPartition, LogEnd]]) -> None:
        """Remove in-sync replicas with shorter logs than others from the ISR, before brokers start.

        This concerns partitions without a leader; replicas that return to a leader are out of sync
        anyway. Each in-sync replica had all acknowledged records, so the longest log has them if at
        least one log is intact; a damaged log is truncated at the damage. If no log has all of them
        and no in-sync replica is absent, the longest log leads.

        Epochs continue from the latest one in any log: the saved epoch may be older.

        Args:
            logs: the log ends of brokers that start, or are alive, by broker.
        """
        for topic_partition, state in self.partitions():
            if state.leader == NO_LEADER:
                ends = {
                    broker: logs[broker].get(topic_partition, LogEnd())
                    for broker in state.replicas
                    if broker in logs
                }
                epochs = [end.epoch for end in ends.values()]
                state.leader_epoch = max([state.leader_epoch, *epochs])
                offsets = {broker: end.offset for broker, end in ends.items()}
                self._keep_longest_logs(topic_partition, state, offsets)

    def _keep_longest_logs(
        self, topic_partition: TopicPartition, state: PartitionState, ends: Mapping[int, int]
    ) -> None:
        candidates: Mapping[int, int] = {b: ends[b] for b in state.isr if b in ends}
        absent = {broker for broker in state.isr if broker not in ends}
        if not candidates:
            return
        if max(candidates.values()) < state.committed_offset:
            # An absent replica may have all records. Without one, the longest log leads.
            candidates = {} if absent else ends
        most = max(candidates.values(), default=state.committed_offset)
        eligible = absent | {broker for broker, end in candidates.items() if end == most}
        isr = tuple(broker for broker in state.replicas if broker in eligible)
        details = {"partition": str(topic_partition), "isr": isr, "log_ends": dict(ends)}
        if isr != state.isr:
            _log.warning("out_of_sync_at_start", former_isr=state.isr, **details)
            state.isr = isr
        if most < state.committed_offset:
            _log.error(
                "acknowledged_records_lost",
                from_offset=most,
                to_offset=state.committed_offset,
                **details,
            )
            state.committed_offset = most

    def record_committed(self, managers: Mapping[int, ReplicaManager]) -> bool:
        """Record the leaders' start and committed offsets; return whether any has changed.

        Args:
            managers: of the live brokers.
        """
        changed = False
        for topic_partition, state in self.partitions():
            manager = managers.get(state.leader)
            partition = None if manager is None else manager.partition(topic_partition)
            if partition is not None and partition.is_leader:
                ends = state.start_offset, state.committed_offset
                state.start_offset = max(state.start_offset, partition.log.start_offset)
                state.committed_offset = max(state.committed_offset, partition.high_watermark)
                changed |= ends != (state.start_offset, state.committed_offset)
        return changed

    def broker_up(self, broker_id: int, member: Member) -> None:
        """Register a live broker: send its roles, and elect leaders for leaderless partitions."""
        self.live[broker_id] = member
        self._notify_live_brokers()
        elected, followed = [], []
        for topic_partition, state in self.partitions():
            if broker_id not in state.replicas:
                continue
            may_be_led = self._allows_unclean(topic_partition.topic) or any(
                replica in self.live for replica in state.isr
            )
            if state.leader == NO_LEADER and may_be_led:
                self._elect(topic_partition, state)
                elected.append((topic_partition, state))
            else:
                followed.append((topic_partition, state))
        self._notify(elected)
        for topic_partition, state in followed:
            member.update_role(topic_partition, state)

    def broker_down(self, broker_id: int) -> None:
        """Remove a broker: elect others for its partitions, and remove it from all ISRs."""
        if self.live.pop(broker_id, None) is None:
            return
        self._notify_live_brokers()
        changed = []
        for topic_partition, state in self.partitions():
            is_removable = broker_id in state.isr and len(state.isr) > 1
            if is_removable:  # the last one stays: it alone has all records
                state.isr = tuple(member for member in state.isr if member != broker_id)
            if state.leader == broker_id:
                self._elect(topic_partition, state)
            elif not is_removable:
                continue
            changed.append((topic_partition, state))
        self._notify(changed)

    def _elect(
        self, topic_partition: TopicPartition, state: PartitionState, unclean: bool = False
    ) -> None:
        candidates = [broker for broker in state.replicas if broker in self.live]
        in_sync = [broker for broker in candidates if broker in state.isr]
        state.leader_epoch += 1
        state.is_clean = True
        if in_sync:
            state.leader = in_sync[0]
        elif candidates and (unclean or self._allows_unclean(topic_partition.topic)):
            _log.warning("unclean_election", partition=str(topic_partition), leader=candidates[0])
            state.leader = candidates[0]
            state.isr = (state.leader,)
            state.is_clean = False
            self.unclean_elections += 1
        else:
            state.leader = NO_LEADER
        self.elections += state.leader != NO_LEADER
        self.on_elected(topic_partition, state)

    def _allows_unclean(self, topic: str) -> bool:
        """Whether a replica that is not in sync may lead a topic's partitions."""
        configured = self.topics[topic].configs.get(_UNCLEAN) or self.default_settings.get(_UNCLEAN)
        return self.unclean if configured is None else configured.lower() == "true"

    def _elect_unclean(self) -> None:
        """Elect leaders where settings now allow unclean elections. O(partitions)."""
        elected = []
        for topic_partition, state in self.partitions():
            if (
                state.leader == NO_LEADER
                and self._allows_unclean(topic_partition.topic)
                and any(replica in self.live for replica in state.replicas)
            ):
                self._elect(topic_partition, state)
                elected.append((topic_partition, state))
        self._notify(elected)

    def elect_preferred(self, unresponsive: Collection[int] = ()) -> None:
        """Elect the preferred leader of each partition, if it is alive and in sync.

        Args:
            unresponsive: live brokers that are not elected.
        """
        chosen = [key for key, state in self.partitions() if state.replicas[0] not in unresponsive]
        self.elect_leaders(chosen, unclean=False)

    def elect_leaders(
        self, topic_partitions: Sequence[TopicPartition], unclean: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """Elect leaders for an administrator; return an error code for each partition.

        Args:
            unclean: elect any live replica where no leader is, in sync or not; else the preferred
                leader, if it is alive and in sync.
        """
        results, elected = {}, []
        for topic_partition in topic_partitions:
            state = self.state_of(topic_partition)
            if state is None:
                results[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            code = (
                state.unclean_election_error(self.live)
                if unclean
                else state.preferred_election_error(self.live)
            )
            results[topic_partition] = code
            if code is ErrorCode.NONE:
                self._elect(topic_partition, state, unclean)
                elected.append((topic_partition, state))
        self._notify(elected)
        return results

    def move_leader(self, topic_partition: TopicPartition, broker_id: int) -> None:
        """Elect a live replica that is in sync, unless it leads already."""
        state = self.state_of(topic_partition)
        assert state is not None and broker_id in state.isr, "the caller has looked"
        if state.leader == broker_id:
            return
        state.leader, state.is_clean = broker_id, True
        state.leader_epoch += 1
        self.elections += 1
        self.on_elected(topic_partition, state)
        self._notify([(topic_partition, state)])

    # Moving replicas.

    def reassign(self, topic_partition: TopicPartition, replicas: Sequence[int] | None) -> None:
        """Begin to move a partition to other replicas, in place of an ongoing move.

        Once all of them are in sync, the others are deleted, and one of the new ones is elected if
        the leader was among these.

        Args:
            replicas: the target, the preferred leader first; None cancels an ongoing move.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT,
                NO_REASSIGNMENT_IN_PROGRESS.
        """
        state = self.state_of(topic_partition)
        if state is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic_partition}"
            )
        if replicas is None and not state.is_moving:
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic_partition} is not being moved"
            )
        target = state.original if replicas is None else tuple(replicas)
        self._check_replicas(target)
        self._complete_reassignment(topic_partition, state, state.reassign_to(target))

    def _check_replicas(self, replicas: tuple[int, ...]) -> None:
        if not replicas or len(set(replicas)) < len(replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"replicas {list(replicas)}: at least one broker, and each once",
            )
        unknown = [broker for broker in replicas if broker not in self.broker_ids]
        if unknown:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"there are no brokers {unknown}; there are {list(self.broker_ids)}",
            )

    def _complete_reassignment(
        self, topic_partition: TopicPartition, state: PartitionState, dropped: Sequence[int]
    ) -> None:
        """Drop the replaced replicas if all others are in sync; notify all brokers concerned."""
        removed = [*dropped, *state.complete_move()]
        if state.leader != NO_LEADER and state.leader not in state.replicas:
            self._elect(topic_partition, state)
        self._notify([(topic_partition, state)])
        for broker_id in removed:
            member = self.live.get(broker_id)
            if member is not None:
                member.drop_replica(topic_partition)

    def change_isr(
        self, topic_partition: TopicPartition, leader_epoch: int, isr: tuple[int, ...]
    ) -> bool:
        """Accept a leader's new ISR, or reject it.

        The ISR is rejected for an old epoch, if a member is dead, if a fault blocks a new member,
        or if the ISR can't be saved.
        """
        state = self.state_of(topic_partition)
        if state is None or state.leader_epoch != leader_epoch:
            return False
        for broker in isr:
            is_new = broker not in state.isr
            if broker not in self.live or (is_new and self.blocks_isr(topic_partition, broker)):
                return False
        previous, state.isr = state.isr, isr
        if not self.on_change():
            state.isr = previous
            return False
        if state.is_moving and set(state.target) <= set(isr):
            self._complete_reassignment(topic_partition, state, ())
        return True

    def remove_from_isr(self, topic_partition: TopicPartition, broker_id: int) -> None:
        """Remove a follower from a partition's ISR.

        The last member stays, even without a leader: it alone has all records, and no leader could
        be elected without it.
        """
        state = self.state_of(topic_partition)
        if state is None or broker_id == state.leader:
            return
        if broker_id in state.isr and len(state.isr) > 1:
            state.isr = tuple(member for member in state.isr if member != broker_id)
            self._notify([(topic_partition, state)])

    # Queries.

    @property
    def controller_id(self) -> int:
        """The broker that clients are told to be the controller; -1: none lives."""
        active = self.active_controller
        return active if active in self.live else min(self.live, default=-1)

    def topic_with_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic that has an id, or None. O(1)."""
        name = self._names.get(topic_id)
        return None if name is None else self.topics[name]

    def state_of(self, topic_partition: TopicPartition) -> PartitionState | None:
        """Return the state of a partition, or None. O(1)."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def is_follower(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Whether a broker follows a partition. O(replicas)."""
        state = self.state_of(topic_partition)
        return state is not None and broker_id in state.replicas and broker_id != state.leader

    def partitions(self) -> list[tuple[TopicPartition, PartitionState]]:
        """Return all partitions of all topics."""
        return [
            (TopicPartition(topic.name, number), state)
            for topic in self.topics.values()
            for number, state in enumerate(topic.partitions)
        ]

    def _notify(self, changed: Sequence[tuple[TopicPartition, PartitionState]]) -> None:
        """Save the metadata, then notify the brokers of changed partitions."""
        if not changed:
            return
        self.on_change()
        for topic_partition, state in changed:
            for broker_id in state.replicas:
                member = self.live.get(broker_id)
                if member is not None:
                    member.update_role(topic_partition, state)

    def _notify_live_brokers(self) -> None:
        for member in list(self.live.values()):
            member.set_live_brokers(sorted(self.live))


def _with(
    former: Mapping[str, dict[str, str]], name: str, settings: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Return a copy with other settings of one name; empty ones are left out."""
    others = {key: value for key, value in former.items() if key != name}
    return {**others, name: dict(settings)} if settings else others


def _rotated(brokers: Sequence[int], by: int) -> list[int]:
    """Return brokers rotated by a number of places."""
    at = by % len(brokers) if brokers else 0
    return [*brokers[at:], *brokers[:at]]
