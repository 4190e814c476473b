"""What the controller knows, in one file that is replaced as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from purgatory.cluster.storage.disk import Disk
from purgatory.cluster.storage.disk_files import paths_in, read_file, replace_file
from purgatory.cluster.storage.real_disk import REAL_DISK
from purgatory.cluster.storage.segment_file import SUFFIX
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.topics import NO_LEADER, PartitionState, Topic

_FILE = "cluster.json"
_VERSION = 1


def save_metadata(
    folder: Path, controller: Controller, next_producer_id: int, disk: Disk = REAL_DISK
) -> None:
    """Write topics, settings, leader epochs, in-sync replicas, what they acknowledged, and the
    producer ids given out."""
    values = {
        "version": _VERSION,
        "brokers": list(controller.broker_ids),
        "next_producer_id": next_producer_id,
        "default_settings": controller.default_settings,
        "broker_settings": controller.broker_settings,
        "group_settings": controller.group_settings,
        "topics": [
            {
                "name": topic.name,
                "id": str(topic.topic_id),
                "internal": topic.internal,
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
    """Fill the controller with what was saved; return the next producer id, 0 for none saved.

    Raises:
        ClusterError: it can't be read, is missing beside logs, or is of a cluster with other
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
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} can't be read as a cluster's metadata: {error!r}") from error
    if brokers != controller.broker_ids:
        raise ClusterError(
            f"{path} is of a cluster with the brokers {list(brokers)}; "
            f"start it with as many, not with {list(controller.broker_ids)}"
        )
    controller.restore(topics, default_settings, broker_settings, group_settings)
    return next_producer_id


def _has_logs(disk: Disk, folder: Path) -> bool:
    return any(
        paths_in(disk, replica, SUFFIX)
        for broker in paths_in(disk, folder)
        if broker.name.startswith("broker-")
        for replica in paths_in(disk, broker)
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
    # A file of a former version has no ids: they may not differ each time that it is read.
    topic_id = UUID(values["id"]) if "id" in values else uuid5(NAMESPACE_OID, name)
    return Topic(name, partitions, dict(values["settings"]), bool(values["internal"]), topic_id)
