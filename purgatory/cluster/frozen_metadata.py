"""Frozen metadata: a broker goes on with responses from before a fault.

A broker with frozen metadata responds to `METADATA_APIS` what any broker responded to the same
request before the fault, or to the first such request since then.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from purgatory.cluster.protocol.connection import Response, await_response
from purgatory.cluster.protocol.wire import Request, encode_body
from purgatory.kafka.faults.active_faults import ActiveFault

METADATA_APIS = frozenset(
    {"metadata", "describe_cluster", "describe_topic_partitions", "find_coordinator"}
)
"""APIs that are served from the metadata alone."""


_MAX_RESPONSES, _MAX_RESPONSE_BYTES = 1_000, 64 * 1024 * 1024
"""The limits of the last responses about metadata: their number, and their bytes."""


class MetadataKey(NamedTuple):
    """The key of a response about metadata: the request, and its client.

    Args:
        api_key, api_version, body: those of the request.
        client: further facts that distinguish responses to clients, such as their principals.
    """

    api_key: int
    api_version: int
    body: Any
    client: object = None


class MetadataResponses:
    """The last encoded responses about metadata, oldest first. O(1) for each."""

    def __init__(self, responses: Mapping[MetadataKey, bytes] = MappingProxyType({})) -> None:
        self._responses = dict(responses)
        self.size_bytes = sum(map(len, self._responses.values()))

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, key: MetadataKey) -> bytes | None:
        """Return the last response, or None."""
        return self._responses.get(key)

    def put(self, key: MetadataKey, response: bytes) -> None:
        """Store a response, and drop the oldest ones above the limits."""
        self.size_bytes += len(response) - len(self._responses.pop(key, b""))
        self._responses[key] = response
        while len(self._responses) > _MAX_RESPONSES or self.size_bytes > _MAX_RESPONSE_BYTES:
            self.size_bytes -= len(self._responses.pop(next(iter(self._responses))))

    def copy(self) -> MetadataResponses:
        """Return a copy. O(responses)."""
        return MetadataResponses(self._responses)


class FrozenMetadata:
    """The last responses about metadata, and those of brokers whose metadata is frozen.

    Args:
        active: the active faults, always the same list.
    """

    def __init__(self, active: Sequence[ActiveFault]) -> None:
        self._active = active
        self._last = MetadataResponses()
        self._frozen: dict[int, MetadataResponses] = {}
        """The responses of brokers with frozen metadata, by the fault's number."""

    def freeze(self, active_fault: ActiveFault) -> None:
        """Freeze the metadata of a fault's brokers, until it ends."""
        self._frozen[active_fault.number] = self._last.copy()

    def end(self, active_fault: ActiveFault) -> None:
        """End a fault of any kind."""
        self._frozen.pop(active_fault.number, None)

    def clear(self) -> None:
        """End all faults."""
        self._frozen.clear()

    async def respond(
        self,
        broker: int,
        request: Request,
        execute: Callable[[Request], Response | Awaitable[Response]],
        client: object = None,
    ) -> Response:
        """Return the response to a request; of `METADATA_APIS`, an old one from a broker with
        frozen metadata.

        Args:
            client: as `MetadataKey` has it.
        """
        if request.api_name not in METADATA_APIS:
            return await await_response(execute(request))
        key = MetadataKey(request.api_key, request.api_version, request.body, client)
        frozen = self._responses_of(broker)
        last = None if frozen is None else frozen.get(key)
        if last is not None:
            return last
        response = await await_response(execute(request))
        if response is None:
            return None
        encoded = encode_body(request.api_key, request.api_version, response)
        (self._last if frozen is None else frozen).put(key, encoded)
        return encoded

    def _responses_of(self, broker: int) -> MetadataResponses | None:
        """Return the responses of a broker with frozen metadata, or None. Counts an injection."""
        for active_fault in self._active:
            frozen = self._frozen.get(active_fault.number)
            if frozen is not None and active_fault.fault.brokers in ((), (broker,)):
                active_fault.use()
                return frozen
        return None
