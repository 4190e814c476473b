"""Names that may differ between two clusters, renamed in the order in which they appear."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.recorded.batches import read_batches

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT_UUID = re.compile(r"^[A-Za-z0-9_-]{22}$")
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
_TIMES_MS = range(1_500_000_000_000, 3_000_000_000_000)
"""Times of day. A program's own times are further in the past."""

_REPLICAS = {
    *("Replicas", "ReplicaNodes", "IsrNodes", "Isr", "OfflineReplicas", "AddingReplicas"),
    *("RemovingReplicas", "EligibleLeaderReplicas", "LastKnownElr"),
}
_NODES = {"NodeId", "LeaderId", "ControllerId", "BrokerId", "Leader", "Coordinator"}
_ORDERED_BY = (
    *("GroupInstanceId", "ClientId", "ResourceType", "PatternType", "Principal", "Operation"),
    *("PermissionType", "TopicName", "Name", "Topic", "ResourceName", "Key", "PartitionIndex"),
    *("Partition", "Index", "ApiKey", "GroupId", "TransactionalId", "ProducerId", "ConfigName"),
    *("QuotaType", "NodeId", "BrokerId"),
)
"""The fields by which lists are ordered, since neither cluster promises an order."""

_LONG_BYTES = 200


class Renamer:
    """Renames ids, nodes, ports, times and a run's name in answers.

    Args:
        run: the name of the run, which stands in the names of its topics and groups.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._names: dict[str, dict[object, str]] = {}

    def __call__(self, value: Any, name: str = "") -> Any:
        """Return an answer that is plain JSON, with everything renamed.

        Args:
            value: the answer, or a part of it.
            name: the name of its field.
        """
        name = name.rstrip("~")
        if isinstance(value, Mapping):
            return {key: self(part, key) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return self._list(value, name)
        if isinstance(value, bytes):
            return self._bytes(value, name)
        if isinstance(value, UUID):
            if value.int == 0:
                return "no id"
            return "<topic id>" if name == "TopicId" else self._numbered("uuid", value)
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._number(value, name)
        return value

    def _numbered(self, kind: str, value: object) -> str:
        known = self._names.setdefault(kind, {})
        return known.setdefault(value, f"<{kind} {len(known) + 1}>")

    def _list(self, values: Sequence[Any], name: str) -> Any:
        if name in _REPLICAS:
            return f"{len(values)} nodes"
        if values and isinstance(values[0], Mapping):
            values = sorted(values, key=self._order)
        elif name == "Partitions" and all(isinstance(value, int) for value in values):
            values = sorted(values)
        return [self(value, name) for value in values]

    def _order(self, message: Mapping[str, Any]) -> str:
        if not any(name in message for name in _ORDERED_BY):
            return json.dumps(message, default=str)
        fields = [message.get(name) for name in _ORDERED_BY]
        producers = self._names.get("producer", {})
        fields[_ORDERED_BY.index("ProducerId")] = producers.get(message.get("ProducerId"))
        return json.dumps(fields, default=str)

    def _bytes(self, value: bytes, name: str) -> Any:
        if name == "Records":
            return [self(one, "Batch") for one in read_batches(value)]
        if len(value) >= _LONG_BYTES:
            return f"{len(value)} bytes"
        return "0x" + value.replace(self._run.encode(), b"<run>").hex()

    def _number(self, value: int, name: str) -> Any:
        if value in _TIMES_MS:
            return "<time>"
        if value > 0:
            if name in _NODES:
                return "<node>"
            if name == "Port":
                return "<port>"
            if name == "BrokerEpoch":
                return "<epoch>"
            if name == "SessionId":
                return self._numbered("session", value)
        if name == "ProducerId" and value >= 0:
            return self._numbered("producer", value)
        return value

    def _text(self, value: str, name: str) -> str:
        if name in ("Host", "ClientHost") and value:
            return "<host>"
        if name == "ClusterId":
            return "<cluster>"
        value = value.replace(self._run, "<run>")
        if name == "MemberId" and _SHORT_UUID.match(value):
            return self._numbered("member", value)
        # Texts of errors are each cluster's own: what they name is no appearance.
        is_own = name.endswith("ErrorMessage")
        value = _UUID.sub(
            lambda found: "<uuid>" if is_own else self._numbered("uuid", found[0]), value
        )
        return _ADDRESS.sub("<host>:<port>", value)
