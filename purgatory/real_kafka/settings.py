"""A cluster's configuration as the settings files of a real Kafka's brokers.

Clients reach a broker through the proxy, which ends their TLS. Behind it a broker has a listener
for each of the configuration's, and two more: INTERNAL for the other brokers and for this program,
and CONTROLLER. A login of its own guards both, so that access control lists apply to all clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from purgatory.cluster.cluster import Cluster
from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.listeners import Endpoint, Listener
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.settings.alter_configs import BROKER_KEYS
from purgatory.kafka.settings.topic_settings import SMALL_SEGMENTS

HOST = "127.0.0.1"
ADMIN = "purgatory-admin"
"""The user by which brokers, controllers and this program log in."""

INTERNAL, CONTROLLER = "INTERNAL", "CONTROLLER"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_MAX_CONTROLLERS = 3


class OnlyOursError(ClusterError):
    """Something that a cluster of this library can do, and a real Kafka can't."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: not with a real Kafka: {why}")


class Ports(NamedTuple):
    """The ports of one broker.

    Args:
        internal: that of the listener INTERNAL.
        controller: that of the listener CONTROLLER.
        clients: those of the configuration's listeners, in their order.
    """

    internal: int
    controller: int
    clients: Sequence[int]


def check_config(config: ClusterConfig) -> None:
    """Check that a real Kafka can do what a configuration says.

    Raises:
        OnlyOursError: it can't.
        ClusterError: the configuration is invalid.
    """
    Cluster(config)  # checks it
    default = ClusterConfig()
    for name, why in _ONLY_OURS.items():
        owner, known, *inner = config, default, *name.split(".")
        value, by_default = _value(owner, inner), _value(known, inner)
        if value != by_default:
            raise OnlyOursError(f"{name}={value!r}", why)
    for listener in config.all_listeners:
        if listener.tls is not None and listener.tls.client_ca is not None:
            raise OnlyOursError(
                f"client_ca={listener.tls.client_ca}",
                "the proxy ends TLS, so that a broker doesn't see the certificates of clients",
            )


_ONLY_OURS: Mapping[str, str] = {
    "kafka_version": "it is one: name its version in its place (--kafka)",
    "follower_lag_ms": "its followers fetch at their own pace",
    "memory_bytes": "its logs are on disk, and their size has no limit",
    "max_partitions": "it has no such limit",
    "transactions.marker_wait_ms": "it answers before the markers are written",
    "transactions.retry_ms": "it tries again at its own pace",
    "limits.queued_bytes": "it reads one request of a client at a time",
    "limits.held_bytes": "its memory is Java's",
    "limits.frame_s": "it waits for the rest of a request",
}
"""The keys without a counterpart, and why."""


def _value(owner: Any, names: Sequence[str]) -> Any:
    for name in names:
        owner = getattr(owner, name)
    return owner


def controllers(config: ClusterConfig) -> Sequence[int]:
    """Return the brokers that are controllers, too: an odd number, three at most.

    A majority of them has to live for elections of leaders.
    """
    count = min(_MAX_CONTROLLERS, config.brokers if config.brokers % 2 else config.brokers - 1)
    return config.broker_ids[:count]


def broker_settings(
    config: ClusterConfig,
    broker_id: int,
    ports: Mapping[int, Ports],
    logs: Path,
    password: str,
) -> dict[str, str]:
    """Return the settings of a broker by Kafka's names.

    Args:
        config: the cluster's.
        broker_id: the broker.
        ports: the ports of all brokers.
        logs: the folder of its logs.
        password: that of `ADMIN`.
    """
    own = ports[broker_id]
    voters = [f"{one}@{HOST}:{ports[one].controller}" for one in controllers(config)]
    listeners = dict(zip(map(listener_name, range(len(own.clients))), own.clients, strict=True))
    listeners[INTERNAL] = own.internal
    protocols = {INTERNAL: "SASL_PLAINTEXT", CONTROLLER: "SASL_PLAINTEXT"}
    for number, listener in enumerate(config.all_listeners):
        protocols[listener_name(number)] = "SASL_PLAINTEXT" if listener.sasl else "PLAINTEXT"
    advertised = [f"{name}://{Endpoint(HOST, port)}" for name, port in listeners.items()]
    is_controller = broker_id in controllers(config)
    settings = {
        **_shared_settings(config),
        "process.roles": "broker,controller" if is_controller else "broker",
        "node.id": str(broker_id),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": INTERNAL,
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        "log.dirs": str(logs),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
    }
    if is_controller:
        advertised.append(f"{CONTROLLER}://{Endpoint(HOST, own.controller)}")
    settings["listeners"] = ",".join(advertised)
    for name in (INTERNAL, CONTROLLER):
        settings |= _sasl(name, ("PLAIN",), {ADMIN: password}, ADMIN)
    for number, listener in enumerate(config.all_listeners):
        if listener.sasl:
            settings |= _sasl(listener_name(number), listener.sasl, config.users or {})
    rack = config.rack(broker_id)
    if rack is not None:
        settings["broker.rack"] = rack
        settings["replica.selector.class"] = (
            "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        )
    if config.authorization is not None:
        users = [f"User:{ADMIN}", *config.authorization.super_users]
        allows = config.authorization.allow_everyone_if_no_acl_found
        settings |= {
            "authorizer.class.name": _AUTHORIZER,
            "super.users": ";".join(users),
            "allow.everyone.if.no.acl.found": str(allows).lower(),
        }
    return settings


def listener_name(number: int) -> str:
    """Return the name that a real broker gives to a listener, by its place."""
    return f"CLIENTS{number}"


def _shared_settings(config: ClusterConfig) -> dict[str, str]:
    """Return the settings that all brokers have alike."""
    values = dict(Cluster(config).broker_settings())
    for name, key in BROKER_KEYS.items():
        value = config.setting(key)
        if value is not None:
            values[name] = value
    if config.setting(SMALL_SEGMENTS) is not None:
        values["log.segment.bytes"] = str(max(config.log_config.segment_bytes, 1024 * 1024))
    # A broker that was killed loses its partitions after three seconds, in place of nine.
    return values | {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.share.enable": "true",
        "max.connections": str(config.limits.connections),
        "num.network.threads": "2",
        "num.io.threads": "4",
    }


def _sasl(
    listener: str, mechanisms: Sequence[str], users: Mapping[str, str], own: str | None = None
) -> dict[str, str]:
    """Return a listener's settings of logins; ``own`` is the user by which the broker logs in."""
    prefix = f"listener.name.{listener.lower()}"
    options = {f"user_{name}": password for name, password in users.items()}
    if own is not None:
        options = {"username": own, "password": users[own], **options}
    settings = {f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms)}
    for mechanism in mechanisms:
        module, given = (_PLAIN, options) if mechanism == "PLAIN" else (_SCRAM, {})
        words = [f"{name}={quoted(value)}" for name, value in given.items()]
        jaas = " ".join([module, "required", *words]) + ";"
        settings[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = jaas
    return settings


def scram_arguments(config: ClusterConfig) -> list[str]:
    """Return the arguments by which Kafka's tool stores the users' passwords for SCRAM."""
    listeners: Sequence[Listener] = config.all_listeners
    used = {mechanism for one in listeners for mechanism in one.sasl if mechanism != "PLAIN"}
    return [
        argument
        for mechanism in sorted(used)
        for name, password in (config.users or {}).items()
        for argument in (
            "--add-scram",
            f"{mechanism}=[name={quoted(name)},password={quoted(password)}]",
        )
    ]


def quoted(text: str) -> str:
    """Return a text in quotes, as Kafka's login settings have it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings as a file of Java's properties, in ASCII."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in sorted(settings.items()))


def _escaped(value: str) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    units = value.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    text = "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)
    return f"\\{text}" if text.startswith(" ") else text
