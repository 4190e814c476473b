"""Replacements, by a client, of the shell tools of Kafka that librdkafka's tests call.

python -m tests.suites.kafka_tools topics --bootstrap-server HOST:PORT --create --topic t ...
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

_TIMEOUT_S = 30
_TOOLS = {"kafka-topics.sh": "topics", "kafka-acls.sh": "acls"}


def write_tools(folder: Path, root: Path) -> Path:
    """Write scripts with the names of Kafka's into `bin`, and return the folder."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for name, what in _TOOLS.items():
        script = folder / "bin" / name
        command = f'exec "{sys.executable}" -m tests.suites.kafka_tools {what} "$@"'
        script.write_text(f'#!/bin/sh\ncd "{root}"\n{command}\n', encoding="utf-8")
        script.chmod(0o755)
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", choices=_TOOLS.values())
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", required=True)
    for action in ("create", "alter", "delete", "add"):
        parser.add_argument(f"--{action}", action="store_true")
    parser.add_argument("--partitions", type=int, default=-1)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--operation", default="All")
    for permission in ("allow", "deny"):
        parser.add_argument(f"--{permission}-principal")
        parser.add_argument(f"--{permission}-host", default="*")
    return parser


def _topics(admin: AdminClient, asked: argparse.Namespace) -> None:
    if asked.create:
        config = dict(one.split("=", 1) for one in asked.config)
        new = NewTopic(asked.topic, asked.partitions, asked.replication_factor, config=config)
        futures = admin.create_topics([new])
    elif asked.alter:
        futures = admin.create_partitions([NewPartitions(asked.topic, asked.partitions)])
    else:
        futures = admin.delete_topics([asked.topic])
    for future in futures.values():
        future.result(_TIMEOUT_S)


def _acls(admin: AdminClient, asked: argparse.Namespace) -> None:
    permission = AclPermissionType.DENY if asked.deny_principal else AclPermissionType.ALLOW
    rule = AclBinding(
        ResourceType.TOPIC,
        asked.topic,
        ResourcePatternType.LITERAL,
        asked.deny_principal or asked.allow_principal,
        asked.deny_host if asked.deny_principal else asked.allow_host,
        AclOperation[asked.operation.upper()],
        permission,
    )
    for future in admin.create_acls([rule]).values():
        future.result(_TIMEOUT_S)


if __name__ == "__main__":
    arguments = _parser().parse_args()
    client = AdminClient({"bootstrap.servers": arguments.bootstrap_server})
    {"topics": _topics, "acls": _acls}[arguments.tool](client, arguments)
