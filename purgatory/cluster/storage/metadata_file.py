"""Files that are replaced as a whole: the controller's metadata, and ACLs with SCRAM credentials.

Only their owner may read the latter: passwords can be tried on a credential.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid5

from purgatory.cluster.storage.disk import REAL_DISK, Disk, list_paths, read_file, replace_file
from purgatory.cluster.storage.segment_file import SUFFIX
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.security.authorizer import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from purgatory.kafka.security.sasl import ScramCredential, ScramMechanism, UserMechanism
from purgatory.kafka.topics import NO_LEADER, PartitionState, Topic

_FILE = "cluster.json"
_VERSION = 1


def save_metadata(
    folder: Path, controller: Controller, next_producer_id: int, disk: Disk = REAL_DISK
) -> None:
    """Write topics, settings, leader epochs, in-sync replicas, acknowledged offsets, and the next
    producer id."""
    values = {
        "version": _VERSION,
        "brokers": list(controller.broker_ids),
        "next_producer_id": next_producer_id,
        "default_settings": controller.default_settings,
        "broker_settings": controller.broker_settings,
        "group_settings": controller.group_settings,
        "client_metrics": controller.client_metrics,
        "client_quotas": [
            {"entity": entity, "quotas": quotas}
            for entity, quotas in controller.client_quotas.entities.items()
        ],
        "feature_levels": controller.feature_levels,
        "topics": [
            {
                "name": topic.name,
                "id": str(topic.topic_id),
                "settings": topic.configs,
                "partitions": [
                    {
                        "replicas": state.replicas,
                        "isr": state.isr,
                        "adding": state.adding,
                        "removing": state.removing,
                        "leader_epoch": state.leader_epoch,
                        "start_offset": state.start_offset,
                        "committed_offset": state.committed_offset,
                    }
                    for state in topic.partitions
                ],
            }
            for topic in controller.topics.values()
        ],
    }
    text = json.dumps(values)  # json.dump is several times slower
    replace_file(disk, folder / _FILE, text.encode(), True)


def load_metadata(folder: Path, controller: Controller, disk: Disk = REAL_DISK) -> int:
    """Load saved metadata into the controller; return the next producer id, 0 without a file.

    Raises:
        ClusterError: the file can't be read, is missing beside logs, or is of a cluster with other
            brokers.
    """
    path = folder / _FILE
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        if _has_logs(disk, folder):
            raise ClusterError(
                f"{path} is missing, but there are logs beside it: put it back, or move them away"
            ) from None
        return 0
    except OSError as error:
        raise ClusterError(f"{path} can't be read: {error.strerror}") from error
    try:
        values: dict[str, Any] = json.loads(data.decode("utf-8"))
        brokers = tuple(values["brokers"])
        topics = [_topic(topic) for topic in values["topics"]]
        next_producer_id = int(values["next_producer_id"])
        default_settings = dict(values.get("default_settings", {}))
        of_brokers = values.get("broker_settings", {}).items()
        broker_settings = {int(broker): dict(settings) for broker, settings in of_brokers}
        group_settings = dict(values.get("group_settings", {}))
        client_metrics = dict(values.get("client_metrics", {}))
        client_quotas = {
            tuple((kind, name) for kind, name in entry["entity"]): dict(entry["quotas"])
            for entry in values.get("client_quotas", ())
        }
        feature_levels = {
            name: int(level)
            for name, level in values.get("feature_levels", {}).items()
            if name in controller.features
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} can't be read as a cluster's metadata: {error!r}") from error
    if brokers != controller.broker_ids:
        raise ClusterError(
            f"{path} is of a cluster with the brokers {list(brokers)}; "
            f"start it with as many, not with {list(controller.broker_ids)}"
        )
    controller.restore(
        topics,
        default_settings,
        broker_settings,
        group_settings,
        client_metrics,
        client_quotas,
        feature_levels,
    )
    return next_producer_id


def _has_logs(disk: Disk, folder: Path) -> bool:
    return any(
        list_paths(disk, replica, SUFFIX)
        for broker in list_paths(disk, folder)
        if broker.name.startswith("broker-")
        for replica in list_paths(disk, broker)
    )


def _topic(values: dict[str, Any]) -> Topic:
    partitions = [
        PartitionState(
            tuple(state["replicas"]),
            tuple(state["isr"]),
            NO_LEADER,
            int(state["leader_epoch"]),
            int(state.get("start_offset", 0)),
            int(state.get("committed_offset", 0)),
            adding=tuple(state.get("adding", ())),
            removing=tuple(state.get("removing", ())),
        )
        for state in values["partitions"]
    ]
    name = str(values["name"])
    # A file of a former version has no ids: each load must give a topic the same one.
    topic_id = UUID(values["id"]) if "id" in values else uuid5(NAMESPACE_OID, name)
    return Topic(name, partitions, dict(values["settings"]), topic_id)


_SECURITY_FILE = "security.json"
_SECURITY_VERSION = 1


class SavedSecurity(NamedTuple):
    """Saved entries and credentials; None for a removed credential."""

    acls: list[Acl]
    credentials: dict[UserMechanism, ScramCredential | None]


def save_security(
    folder: Path,
    acls: Iterable[Acl],
    credentials: Mapping[UserMechanism, ScramCredential | None],
    disk: Disk = REAL_DISK,
) -> None:
    """Write the security state.

    Raises:
        OSError: the disk refuses it; the former file is unchanged.
    """
    values = {
        "version": _SECURITY_VERSION,
        "acls": [
            [field.name if isinstance(field, _ENUMS) else field for field in acl] for acl in acls
        ],
        "credentials": [
            {"user": key.user, "mechanism": key.mechanism.value, **_written(credential)}
            for key, credential in credentials.items()
        ],
    }
    replace_file(disk, folder / _SECURITY_FILE, json.dumps(values).encode(), True, mode=0o600)


def load_security(folder: Path, disk: Disk = REAL_DISK) -> SavedSecurity:
    """Load the saved security state; empty without a file.

    Raises:
        ClusterError: the file can't be read.
    """
    path = folder / _SECURITY_FILE
    try:
        values: dict[str, Any] = json.loads(read_file(disk, path).decode("utf-8"))
        acls = [_acl(*fields) for fields in values["acls"]]
        credentials = {
            UserMechanism(entry["user"], ScramMechanism(entry["mechanism"])): _credential(entry)
            for entry in values["credentials"]
        }
    except FileNotFoundError:
        return SavedSecurity([], {})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} can't be read as a cluster's security: {error!r}") from error
    return SavedSecurity(acls, credentials)


_ENUMS = (ResourceType, PatternType, Operation, Permission)


def _acl(
    resource: str,
    name: str,
    pattern: str,
    principal: str,
    host: str,
    operation: str,
    permission: str,
) -> Acl:
    return Acl(
        ResourceType[resource],
        name,
        PatternType[pattern],
        principal,
        host,
        Operation[operation],
        Permission[permission],
    )


def _written(credential: ScramCredential | None) -> dict[str, Any]:
    if credential is None:
        return {}
    return {
        "salt": credential.salt.hex(),
        "iterations": credential.iterations,
        "stored_key": credential.stored_key.hex(),
        "server_key": credential.server_key.hex(),
    }


def _credential(values: Mapping[str, Any]) -> ScramCredential | None:
    if "salt" not in values:
        return None
    return ScramCredential(
        bytes.fromhex(values["salt"]),
        int(values["iterations"]),
        bytes.fromhex(values["stored_key"]),
        bytes.fromhex(values["server_key"]),
    )
