"""Topics, partitions, elections, reassignments, and the deletion of records.

The controller creates and deletes topics at once. The response waits in the purgatory Topic until
all new partitions are led, or no live broker has a replica of a deleted one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from purgatory.cluster.api.authorization import authorization_context
from purgatory.cluster.api.configs import described_topic_settings
from purgatory.cluster.api.response_future import response_future
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.metadata import ClusterMetadata
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import ErrorCode, KafkaError, PartitionDeleteRecordsResponse, TopicPartition
from purgatory.kafka.controller import Controller
from purgatory.kafka.security.authorizer import Operation
from purgatory.kafka.topics import Topic, invalid_topic_name_reason

_DELETE_BY_IDS = 6
"""Since this version of DeleteTopics a topic may be named by its id."""

_KNOWS_THROTTLING = {
    "create_topics": 6,
    "delete_topics": 5,
    "create_partitions": 3,
    "streams_group_heartbeat": 0,
}
"""Since these versions clients know THROTTLING_QUOTA_EXCEEDED."""

_DEFAULT = -1
_METADATA_TOPIC = "__cluster_metadata"
_INTERNAL = PartitionDeleteRecordsResponse(ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


class _Refused(NamedTuple):
    code: int
    message: str | None


class _Mutations:
    """The changes of partitions by one request, counted against its client's quota.

    Clients of versions that know the error are refused while they are in debt; others only wait.
    """

    def __init__(self, broker: BrokerServices, request: Request, connection: Connection) -> None:
        self._meter = broker.cluster.controller.mutations
        self._client = connection.principal, request.client_id or ""
        self._connection = connection
        self._clock = broker.manager.clock
        self._strict = request.api_version >= _KNOWS_THROTTLING[request.api_name]
        self._throttled_until_ms = 0

    def refusal(self, partitions: int) -> _Refused | None:
        """Count changed partitions; return the error if the client is in debt."""
        if not self._meter.is_needed:
            return None
        now_ms = int(self._clock.now_ms())
        may, wait_ms = self._meter.mutate(*self._client, partitions, now_ms, self._strict)
        if wait_ms:
            self._throttled_until_ms = now_ms + wait_ms
        if may:
            return None
        return _Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, None)

    def throttle_ms(self) -> int:
        """Return how long the client is to wait yet; its further requests do."""
        wait_ms = max(0, self._throttled_until_ms - int(self._clock.now_ms()))
        self._connection.mute(wait_ms)
        return wait_ms


async def create_topics(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Create topics; each succeeds or fails by itself."""
    body, cluster = request.body, broker.cluster
    named = Counter(topic.name for topic in body.topics)
    topics = {topic.name: topic for topic in body.topics}
    # As in Kafka: names of one request collide with those that were there before alone.
    existing = list(cluster.controller.topics)
    mutations = _Mutations(broker, request, connection)
    refusals = [
        _Refused(ErrorCode.INVALID_REQUEST, f"{name} is named twice")
        if named[name] > 1
        else _too_late(body.timeout)
        or _create(cluster, requested, existing, body.validate_only, mutations)
        for name, requested in topics.items()
    ]
    if not body.validate_only:
        names = list(topics)
        refusals = await _wait_until_led(broker, names, {}, refusals, body.timeout)
    context = authorization_context(broker, request, connection)

    def may_describe(name: str) -> bool:
        return context is None or context.allows_topic(Operation.DESCRIBE_CONFIGS, name)

    results = [
        _created(broker, requested, may_describe(requested.name))
        if refused is None
        else _creation(requested.name, refused)
        for requested, refused in zip(topics.values(), refusals, strict=True)
    ]
    return {"throttle_time": mutations.throttle_ms(), "topics": results}


def create_internal_topics(
    broker: BrokerServices, request: Request, connection: Connection, topics: Sequence[Any]
) -> Mapping[str, str]:
    """Create topics that a request of another kind needs; return why some could not be, by name.

    Args:
        topics: as in CreateTopics.
    """
    existing = list(broker.cluster.controller.topics)
    mutations = _Mutations(broker, request, connection)
    refusals = {
        topic.name: _create(broker.cluster, topic, existing, False, mutations) for topic in topics
    }
    mutations.throttle_ms()
    return {
        name: refused.message or ErrorCode(refused.code).name
        for name, refused in refusals.items()
        if refused is not None
    }


def _too_late(timeout: Any) -> _Refused | None:
    """Refuse a request without time: as in Kafka, nothing of it is done."""
    if milliseconds(timeout) > 0:
        return None
    return _Refused(ErrorCode.REQUEST_TIMED_OUT, "a timeout of 0: nothing was done")


async def _wait_until_led(
    broker: BrokerServices,
    names: Sequence[str],
    first_new: Mapping[str, int],
    refusals: Sequence[_Refused | None],
    timeout: Any,
) -> list[_Refused | None]:
    """Wait until new partitions are led, from the first new one of each topic on."""

    def has_leaders(name: str) -> bool:
        topic = broker.cluster.controller.topics.get(name)
        return topic is not None and all(
            broker.knows_leader(TopicPartition(name, number))
            for number in range(first_new.get(name, 0), len(topic.partitions))
        )

    return await _wait_until(
        broker, names, has_leaders, refusals, timeout, "no leader leads all of it yet"
    )


async def _wait_until(
    broker: BrokerServices,
    names: Sequence[str],
    is_in_force: Callable[[str], bool],
    refusals: Sequence[_Refused | None],
    timeout: Any,
    error_of: str,
) -> list[_Refused | None]:
    """Wait for the accepted changes; return all errors, also those of timeouts."""
    decided = {
        name: ErrorCode.NONE
        for name, refused in zip(names, refusals, strict=True)
        if refused is None
    }
    changes = broker.topic_changes
    became: Mapping[str, ErrorCode] = await response_future(
        partial(changes.wait, decided, is_in_force, milliseconds(timeout))
    )
    late = {
        name: _Refused(int(code), f"{name} was changed, but {error_of}")
        for name, code in became.items()
        if code is not ErrorCode.NONE
    }
    return [
        refused if refused is not None else late.get(name)
        for name, refused in zip(names, refusals, strict=True)
    ]


def _create(
    cluster: ClusterMetadata,
    requested: Any,
    existing: Sequence[str],
    validate_only: bool,
    mutations: _Mutations,
) -> _Refused | None:
    if requested.name in cluster.controller.topics:
        return _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{requested.name}' already exists.")
    if requested.name == _METADATA_TOPIC:
        return _Refused(ErrorCode.INVALID_REQUEST, f"{_METADATA_TOPIC} is no topic of brokers")
    wrong = invalid_topic_name_reason(requested.name, existing)
    if wrong is not None:
        return _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong)
    try:
        configs = {config.name: config.value for config in requested.configs}
        settings = cluster.checked_settings(configs)
    except KafkaError as error:
        return _Refused(int(error.code), error.message)
    if requested.assignments:
        return _create_assigned(cluster, requested, settings, validate_only, mutations)
    partitions, replication = _counts(cluster, requested)
    brokers = len(cluster.brokers)
    if not 1 <= replication <= brokers:
        return _Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replication} replicas; there are {brokers} brokers",
        )
    if partitions < 1:
        return _Refused(
            ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; it takes at least 1"
        )
    if not cluster.has_room_for(partitions):
        return _too_many(cluster)
    if (refused := mutations.refusal(partitions)) is not None:
        return refused
    if not validate_only:
        _begin_delays(cluster, requested.name)
        cluster.controller.create_topic(requested.name, partitions, replication, settings)
    return None


def _begin_delays(cluster: ClusterMetadata, topic: str) -> None:
    if cluster.delays is not None:
        cluster.delays.begin_topic(topic, is_automatic=False)


def _too_many(cluster: ClusterMetadata) -> _Refused:
    most, there = cluster.config.max_partitions, cluster.controller.partition_count
    return _Refused(
        ErrorCode.POLICY_VIOLATION,
        f"all topics together may have {most} partitions; {there} are there",
    )


def _create_assigned(
    cluster: ClusterMetadata,
    requested: Any,
    settings: Mapping[str, str],
    validate_only: bool,
    mutations: _Mutations,
) -> _Refused | None:
    if (requested.num_partitions, requested.replication_factor) != (_DEFAULT, _DEFAULT):
        return _Refused(
            ErrorCode.INVALID_REQUEST,
            f"{requested.num_partitions} partitions and {requested.replication_factor} replicas "
            "beside an assignment, which says how many: both are -1 then",
        )
    assignments = {
        assignment.partition_index: tuple(assignment.broker_ids)
        for assignment in requested.assignments
    }
    sound = (
        sorted(assignments) == list(range(len(requested.assignments)))
        and len({len(replicas) for replicas in assignments.values()}) == 1
        and all(_are_replicas(cluster, replicas) for replicas in assignments.values())
    )
    if not sound:
        return _Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions count from 0, each has as many replicas, of the brokers "
            f"{list(cluster.brokers)}, and one of them lives",
        )
    if not cluster.has_room_for(len(assignments)):
        return _too_many(cluster)
    if (refused := mutations.refusal(len(assignments))) is not None:
        return refused
    if not validate_only:
        _begin_delays(cluster, requested.name)
        replicas = [assignments[number] for number in range(len(assignments))]
        cluster.controller.create_assigned_topic(requested.name, replicas, settings)
    return None


def _counts(cluster: ClusterMetadata, requested: Any) -> tuple[int, int]:
    partitions, replication = requested.num_partitions, requested.replication_factor
    return (
        cluster.config.default_partitions if partitions == _DEFAULT else partitions,
        cluster.default_replication if replication == _DEFAULT else replication,
    )


def _creation(name: str, refused: _Refused | None) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": ErrorCode.NONE if refused is None else refused.code,
        "error_message": None if refused is None else refused.message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }


def _created(broker: BrokerServices, requested: Any, may_describe: bool) -> dict[str, Any]:
    """Describe a new topic, or one that could be created: as in Kafka it has an id, too."""
    topic = broker.cluster.controller.topics.get(requested.name)
    values = {
        **_creation(requested.name, None),
        "topic_id": uuid4() if topic is None else topic.topic_id,
    }
    if not may_describe:
        return {**values, "topic_config_error_code": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    partitions, replication = _counts(broker.cluster, requested)
    if requested.assignments:
        partitions, replication = (
            len(requested.assignments),
            len(requested.assignments[0].broker_ids),
        )
    own = {config.name: config.value for config in requested.configs}
    return {
        **values,
        "num_partitions": partitions,
        "replication_factor": replication,
        "configs": list(described_topic_settings(broker, own)),
    }


async def delete_topics(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Delete topics with their records, by their names or their ids."""
    body, cluster = request.body, broker.cluster
    if request.api_version < _DELETE_BY_IDS:
        requested: list[tuple[str | None, UUID | None]] = [
            (name, None) for name in body.topic_names
        ]
    else:
        requested = [(topic.name, topic.topic_id) for topic in body.topics]
    topics, results = _topics_to_delete(cluster, requested)
    late = _too_late(body.timeout)
    if late is not None:
        results += [_deletion(topic.name, topic.topic_id, late) for topic in topics]
        topics = []
    mutations = _Mutations(broker, request, connection)
    deleted = []
    for topic in topics:
        throttled = mutations.refusal(len(topic.partitions))
        if throttled is None:
            deleted.append(topic)
            cluster.controller.delete_topic(topic.name)
        else:
            results.append(_deletion(topic.name, topic.topic_id, throttled))
    topics = deleted
    refusals = await _wait_until_deleted(broker, topics, body.timeout)
    results += [
        _deletion(topic.name, topic.topic_id, refused)
        for topic, refused in zip(topics, refusals, strict=True)
    ]
    return {"throttle_time": mutations.throttle_ms(), "responses": results}


def _topics_to_delete(
    cluster: ClusterMetadata, requested: Sequence[tuple[str | None, UUID | None]]
) -> tuple[list[Topic], list[dict[str, Any]]]:
    """Return the topics that may be deleted, and the results of what can't be.

    A topic that is named twice, by its name, its id or both, has one result, and stays.
    """
    results: list[dict[str, Any]] = []

    def refuse(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str) -> None:
        results.append(_deletion(name, topic_id, _Refused(code, message)))

    found: dict[UUID, Topic] = {}
    named_twice: set[UUID] = set()
    for (name, topic_id), count in Counter(requested).items():
        topic = cluster.topic_of(topic_id if name is None else name)
        if name is not None and topic_id is not None:
            error = f"{name} has an id as well: name it by one of them"
            refuse(name, topic_id, ErrorCode.INVALID_REQUEST, error)
        elif name is None and topic_id is None:
            error = "a topic without a name and without an id"
            refuse(None, None, ErrorCode.INVALID_REQUEST, error)
        elif count > 1:
            refuse(name, topic_id, ErrorCode.INVALID_REQUEST, f"{name or topic_id} is there twice")
            if topic is not None:
                named_twice.add(topic.topic_id)
        elif topic is None and name is None:
            refuse(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        elif topic is None:
            error = f"there is no topic {name}"
            refuse(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error)
        elif topic.internal:
            error = f"{topic.name} is the cluster's own"
            refuse(topic.name, topic.topic_id, ErrorCode.INVALID_TOPIC_EXCEPTION, error)
        elif topic.topic_id in found:
            named_twice.add(topic.topic_id)
            error = f"{topic.name} is there by its name and by its id"
            refuse(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, error)
        else:
            found[topic.topic_id] = topic
    return [topic for key, topic in found.items() if key not in named_twice], results


def _deletion(name: str | None, topic_id: UUID | None, refused: _Refused | None) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": ErrorCode.NONE if refused is None else refused.code,
        "error_message": None if refused is None else refused.message,
    }


async def _wait_until_deleted(
    broker: BrokerServices, topics: Sequence[Topic], timeout: Any
) -> list[_Refused | None]:
    """Wait until no live broker has a replica of the deleted topics."""
    replicas = {
        topic.name: {replica for partition in topic.partitions for replica in partition.replicas}
        for topic in topics
    }

    def is_deleted(name: str) -> bool:
        return not any(broker.cluster.is_stopped(replica) for replica in replicas[name])

    return await _wait_until(
        broker,
        list(replicas),
        is_deleted,
        [None] * len(topics),
        timeout,
        "a replica is still there",
    )


async def create_partitions(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Give topics more partitions."""
    body, topics = request.body, broker.cluster.controller.topics
    named = Counter(requested.name for requested in body.topics)
    changes = {requested.name: requested for requested in body.topics}
    first_new = {name: len(topics[name].partitions) for name in changes if name in topics}
    mutations = _Mutations(broker, request, connection)
    refusals = [
        _Refused(ErrorCode.INVALID_REQUEST, f"{name} is named twice")
        if named[name] > 1
        else _too_late(body.timeout)
        or _add_partitions(broker.cluster, requested, body.validate_only, mutations)
        for name, requested in changes.items()
    ]
    if not body.validate_only:
        refusals = await _wait_until_led(broker, list(changes), first_new, refusals, body.timeout)
    results = [
        {
            "name": name,
            "error_code": ErrorCode.NONE if refused is None else refused.code,
            "error_message": None if refused is None else refused.message,
        }
        for name, refused in zip(changes, refusals, strict=True)
    ]
    return {"throttle_time": mutations.throttle_ms(), "results": results}


def _add_partitions(
    cluster: ClusterMetadata, requested: Any, validate_only: bool, mutations: _Mutations
) -> _Refused | None:
    topic = cluster.controller.topics.get(requested.name)
    if topic is None:
        return _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {requested.name}")
    now = len(topic.partitions)
    if requested.count <= now:
        return _Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"{requested.name} has {now} partitions: {requested.count} are not more",
        )
    if not cluster.has_room_for(requested.count - now):
        return _too_many(cluster)
    if requested.assignments is None:
        refused = mutations.refusal(requested.count - now)
        if refused is None and not validate_only:
            cluster.controller.create_partitions(requested.name, requested.count)
        return refused
    assignment = [tuple(replicas.broker_ids) for replicas in requested.assignments]
    replication = len(topic.partitions[0].replicas)
    if len(assignment) != requested.count - now or not all(
        len(replicas) == replication and _are_replicas(cluster, replicas) for replicas in assignment
    ):
        return _Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{requested.count - now} partitions are new, each with {replication} replicas of the "
            f"brokers {list(cluster.brokers)}, of which one lives",
        )
    refused = mutations.refusal(requested.count - now)
    if refused is None and not validate_only:
        cluster.controller.create_assigned_partitions(requested.name, assignment)
    return refused


def _are_replicas(cluster: ClusterMetadata, replicas: tuple[int, ...]) -> bool:
    """Whether a new partition may have these replicas: known brokers, each once, not all dead."""
    return (
        len(set(replicas)) == len(replicas)
        and set(replicas) <= set(cluster.brokers)
        and any(cluster.live_broker(broker_id) for broker_id in replicas)
    )


async def delete_records(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Delete the oldest records; complete once all live replicas have deleted them."""
    body, topics = request.body, broker.cluster.controller.topics
    offsets, refused = {}, {}
    for topic in body.topics:
        is_internal = topic.name in topics and topics[topic.name].internal
        for requested in topic.partitions:
            topic_partition = TopicPartition(topic.name, requested.partition_index)
            if is_internal:
                refused[topic_partition] = _INTERNAL
            else:
                offsets[topic_partition] = requested.offset
    results: Mapping[TopicPartition, PartitionDeleteRecordsResponse] = await response_future(
        partial(broker.manager.delete_records, milliseconds(body.timeout), offsets)
    )
    results = {**results, **refused}
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _deleted(results, TopicPartition(topic.name, requested.partition_index))
                    for requested in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


def _deleted(
    results: Mapping[TopicPartition, PartitionDeleteRecordsResponse],
    topic_partition: TopicPartition,
) -> dict[str, int]:
    result = results[topic_partition]
    return {
        "partition_index": topic_partition.partition,
        "low_watermark": result.low_watermark,
        "error_code": int(result.error),
    }


_PREFERRED, _UNCLEAN = 0, 1

_ELECTION_MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
    ErrorCode.ELECTION_NOT_NEEDED: "it has the requested leader",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "the first replica is dead, or not in sync",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "all of its replicas are dead",
    ErrorCode.REQUEST_TIMED_OUT: "a leader was elected, and does not lead yet",
}


async def elect_leaders(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Elect leaders; complete when they lead."""
    body = request.body
    kind = getattr(body, "election_type", _PREFERRED)
    requested = None
    if body.topic_partitions is not None:
        requested = [
            TopicPartition(topic.topic, number)
            for topic in body.topic_partitions
            for number in topic.partitions
        ]
    if requested == []:
        return _elected(0, {})
    refused = _too_late(body.timeout)
    if refused is None and kind not in (_PREFERRED, _UNCLEAN):
        refused = _Refused(ErrorCode.INVALID_REQUEST, f"there is no election type {kind}")
    if refused is not None:
        return _elected(refused.code, dict.fromkeys(requested or (), refused))
    results: Mapping[TopicPartition, ErrorCode] = await response_future(
        partial(broker.elections.elect, requested, kind == _UNCLEAN, milliseconds(body.timeout))
    )
    messages = _ELECTION_MESSAGES
    return _elected(0, {one: (int(code), messages.get(code)) for one, code in results.items()})


def _elected(code: int, results: Mapping[TopicPartition, tuple[int, str | None]]) -> Response:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, number), (of_partition, message) in results.items():
        partition = {
            "partition_id": number,
            "error_code": of_partition,
            "error_message": message,
        }
        topics.setdefault(topic, []).append(partition)
    return {
        "throttle_time": 0,
        "error_code": code,
        "replica_election_results": [
            {"topic": topic, "partition_result": partitions} for topic, partitions in topics.items()
        ],
    }


async def alter_partition_reassignments(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Begin or cancel reassignments of partitions; each succeeds or fails by itself."""
    body = request.body
    may_change_count = getattr(body, "allow_replication_factor_change", True)
    late = _too_late(body.timeout)
    return {
        "throttle_time": 0,
        "allow_replication_factor_change": may_change_count,
        "error_code": 0 if late is None else late.code,
        "error_message": ("" if not body.topics else None) if late is None else late.message,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    _reassigned(broker.cluster.controller, topic.name, requested, may_change_count)
                    if late is None
                    else {
                        "partition_index": requested.partition_index,
                        "error_code": late.code,
                        "error_message": late.message,
                    }
                    for requested in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


def _reassigned(
    controller: Controller, topic: str, requested: Any, may_change_count: bool
) -> dict[str, Any]:
    topic_partition = TopicPartition(topic, requested.partition_index)
    code, message = ErrorCode.NONE, None
    try:
        state, replicas = controller.state_of(topic_partition), requested.replicas
        if (
            not may_change_count
            and state is not None
            and replicas is not None
            and len(replicas) != len(state.target)
        ):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{len(replicas)} replicas in place of {len(state.target)}, which may not change",
            )
        controller.reassign(topic_partition, requested.replicas)
    except KafkaError as error:
        code, message = error.code, error.message
    return {
        "partition_index": requested.partition_index,
        "error_code": int(code),
        "error_message": message,
    }


async def list_partition_reassignments(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the ongoing reassignments of the requested partitions, or of all."""
    requested = request.body.topics
    requested_partitions = requested and {
        (topic.name, number) for topic in requested for number in topic.partition_indexes
    }
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic_partition, state in broker.cluster.controller.partitions():
        moves = bool(state.adding or state.removing)
        if moves and (requested is None or topic_partition in requested_partitions):
            partition = {
                "partition_index": topic_partition.partition,
                "replicas": state.replicas,
                "adding_replicas": state.adding,
                "removing_replicas": state.removing,
            }
            topics.setdefault(topic_partition.topic, []).append(partition)
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": None,
        "topics": [
            {"name": topic, "partitions": partitions} for topic, partitions in topics.items()
        ],
    }
