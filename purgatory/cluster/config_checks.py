"""What a cluster's config may not be, beyond the types of its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from purgatory.cluster.cluster_config import ClusterConfig
from purgatory.cluster.listener import MECHANISMS
from purgatory.kafka.errors import ClusterError, KafkaError
from purgatory.kafka.settings.topic_settings import checked_settings
from purgatory.kafka.topics import why_no_topic_name
from purgatory.settings.problems import ABSENT, Problem

_MOST_PORT = 65_535


def config_problems(config: ClusterConfig) -> Iterator[Problem]:
    """Find all that is wrong."""
    yield from _bounds(config)
    yield from _topics(config)
    yield from _listeners(config)
    yield from _users(config)
    if config.authorization is not None:
        for number, spec in enumerate(config.authorization.acls):
            try:
                _ = spec.acl
            except ClusterError as error:
                yield Problem(f"authorization.acls[{number}]", ABSENT, str(error))


def _bounds(config: ClusterConfig) -> Iterator[Problem]:
    least = {
        "brokers": 1,
        "first_broker_id": 0,
        "default_partitions": 1,
        "max_partitions": 1,
        "offsets_partitions": 1,
        "share_state_partitions": 1,
        "min_insync_replicas": 1,
        "follower_lag_ms": 0,
        "replica_max_lag_ms": 1,
    }
    for key, value in config.groups._asdict().items():
        bound = 0 if key == "initial_rebalance_delay_ms" else 1
        if isinstance(value, int) and value < bound:
            yield Problem(f"groups.{key}", value, f"must be at least {bound}")
    if config.min_insync_replicas > config.brokers >= 1:
        right = f"must be at most brokers, which is {config.brokers}"
        yield Problem("min_insync_replicas", config.min_insync_replicas, right)
    default = config.default_replication
    if default is not None and not 1 <= default <= config.brokers:
        right = f"must be from 1 to brokers, which is {config.brokers}"
        yield Problem("default_replication", default, right)
    if config.racks and len(config.racks) != config.brokers:
        right = f"must be one for each of {config.brokers} brokers"
        yield Problem("racks", list(config.racks), right)
    for key, bound in least.items():
        if getattr(config, key) < bound:
            yield Problem(key, getattr(config, key), f"must be at least {bound}")


def _topics(config: ClusterConfig) -> Iterator[Problem]:
    names = [topic.name for topic in config.topics]
    yield from _repeated("topics", "name", names)
    for number, topic in enumerate(config.topics):
        place = f"topics[{number}]"
        wrong = why_no_topic_name(topic.name, names[:number])
        if wrong is not None:
            yield Problem(f"{place}.name", ABSENT, wrong)
        if topic.partitions < 1:
            yield Problem(f"{place}.partitions", topic.partitions, "must be at least 1")
        if topic.replication is not None and not 1 <= topic.replication <= config.brokers:
            right = f"must be from 1 to brokers, which is {config.brokers}"
            yield Problem(f"{place}.replication", topic.replication, right)
        try:
            checked_settings(topic.settings, config.setting)
        except KafkaError as error:
            yield Problem(f"{place}.settings", ABSENT, error.message)


def _listeners(config: ClusterConfig) -> Iterator[Problem]:
    yield from _repeated("listeners", "name", [one.name for one in config.listeners])
    taken: dict[tuple[str, int], str] = {}
    for number, listener in enumerate(config.all_listeners):
        place = f"listeners[{number}]." if config.listeners else ""
        last = listener.first_port + config.brokers - 1
        if listener.first_port < 0 or last > _MOST_PORT:
            right = f"a port for each of {config.brokers} brokers is from 0 to {_MOST_PORT}"
            yield Problem(f"{place}first_port", listener.first_port, right)
        for mechanism in listener.sasl:
            if mechanism not in MECHANISMS:
                right = f"mechanisms are {', '.join(MECHANISMS)}"
                yield Problem(f"{place}sasl", mechanism, right)
        for broker_id in config.broker_ids if listener.first_port else ():
            at = config.place(listener, broker_id)
            if at in taken:
                right = f"port {at.port} is one of listener {taken[at]}, too"
                yield Problem(f"{place}first_port", listener.first_port, right)
                break
            taken[at] = listener.name


def _users(config: ClusterConfig) -> Iterator[Problem]:
    if config.users is None:
        return
    if "" in config.users:
        yield Problem("users", "", "a user has a name")
    if config.listeners and not any(listener.sasl for listener in config.listeners):
        names = ", ".join(config.users)
        yield Problem("users", names, "no listener asks for them: say by which mechanisms (sasl)")


def _repeated(section: str, key: str, values: Sequence[str]) -> Iterable[Problem]:
    counts = Counter(values)
    for number, value in enumerate(values):
        if counts[value] > 1 and value in values[:number]:
            yield Problem(f"{section}[{number}].{key}", value, "is there twice; once is enough")
