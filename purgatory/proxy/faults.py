"""The faults of a proxy: those of the cluster that concern connections and messages.

A request into which a fault may be injected is decoded, and the rest of it goes to the broker. A
response that a fault alters is decoded, too; for losses, delays and truncations its API and client
suffice, so that these faults work in versions that the codec doesn't know.

Ground rules
------------
* Everything happens on the event loop's thread.
* While an error may be injected into fetches, clients have no fetch sessions, so that each fetch
  lists its partitions. An earlier session is ended by the error with which brokers end one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from purgatory.cluster.fault_injection import ConnectionFaults, FaultTarget
from purgatory.cluster.frozen_metadata import METADATA_APIS
from purgatory.cluster.protocol.connection import Response
from purgatory.cluster.protocol.error_responses import error_places, error_response
from purgatory.cluster.protocol.wire import (
    API_VERSIONS,
    Request,
    decode_request,
    encode_request,
    encode_response,
)
from purgatory.cluster.steering import FAULTS
from purgatory.cluster.steering.seen_requests import SeenRequest
from purgatory.kafka.errors import ClusterError, ErrorCode
from purgatory.kafka.faults import (
    Fault,
    LoseRequests,
    ResponseFault,
    ReturnError,
)
from purgatory.kafka.replication.fetch_session import FINAL_EPOCH, FIRST_EPOCH
from purgatory.proxy.addresses import (
    KNOWN_VERSIONS,
    ProxiedBroker,
    TopicIds,
    is_known,
    is_unsupported_version,
    open_response,
    unsupported_version_response,
)
from purgatory.proxy.connection import PREFIX_BYTES, ClientConnection, RequestHeader
from purgatory.proxy.requests import PassedRequests
from purgatory.proxy.trace import ProxyTrace

_REPLICATION = "brokers replicate past the proxy; `purgatory cluster` has this fault, "
REFUSALS: Mapping[str, str] = {
    "stall_follower": _REPLICATION + "and return_error with NOT_ENOUGH_REPLICAS shows clients one",
    "slow_follower": _REPLICATION + "and delay_responses with api=Produce shows clients one",
    "shrink_isr": _REPLICATION + "and return_error with NOT_ENOUGH_REPLICAS shows clients one",
    "cut_link": _REPLICATION + "and a firewall between real brokers cuts theirs",
    "kill": "the broker is no process of the proxy's; pause has it respond to nobody, "
    "cut_connections cuts its clients, and `purgatory cluster` has brokers to kill",
    "jump_clock": "a broker has a clock of its own; `purgatory cluster` has this fault",
}
"""The kinds of faults that a proxy doesn't have, and the alternatives."""

_FETCH = "fetch"


class _UntouchedResponseError(Exception):
    """A response that is sent unchanged."""

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self.frame = frame


class ProxyFaults(ConnectionFaults):
    """Injects faults into connections through a proxy, and lists the active ones.

    Args:
        target: the brokers, and the rows of APIs.
        topics: the topics of responses.
        recorder: records requests and responses; None: there is no trace.
    """

    refusals = REFUSALS

    def __init__(
        self, target: FaultTarget, topics: TopicIds, recorder: ProxyTrace | None = None
    ) -> None:
        super().__init__(target)
        self._recorder = recorder
        if recorder is not None:
            self.on_refused = recorder.trace.record_injected_error
        self.topics = topics
        self.passed = PassedRequests(target.apis, topics.names.get, self, self._not_here)
        self.on_use = partial(self.passed.wait_for.notify, FAULTS)

    # Begins and ends.

    def _check(self, fault: Fault) -> None:
        if fault.kind in self.refusals:
            raise self._not_here(fault.kind, self.refusals[fault.kind])
        super()._check(fault)

    def _not_here(self, kind: str, reason: str) -> ClusterError:
        """Return the error of a kind of fault or wait that is not possible here."""
        return ClusterError(f"{kind}: not in a proxy: {reason}")

    async def revive(self, broker: int) -> None:
        raise ClusterError(f"revive: not in a proxy: {REFUSALS['kill']}")

    # Concerns.

    def concerns_request(self, broker: ProxiedBroker, request: Request) -> bool:
        """Whether a request has to be served by `serve`."""
        name, broker_id = request.api_name, broker.broker_id
        if not is_known(request.api_key, request.api_version):
            version = request.api_version
            broker.addresses.warn_once("version_is_unknown", api=request.api_key, version=version)
        is_readable = self._is_readable(request)
        if request.api_key == API_VERSIONS and not is_readable:
            return True
        if is_readable and (name in METADATA_APIS or self._is_recorded(request)):
            return True
        if is_readable and self.passed.may_hook(broker_id, request):
            return True
        if not self.active:
            return False
        matching = [fault for _, fault in self.matching(broker_id, name, request.client_id)]
        if self.is_paused(broker_id) or any(isinstance(one, LoseRequests) for one in matching):
            return True
        return is_readable and any(not isinstance(fault, ResponseFault) for fault in matching)

    def concerns_response(self, broker: ProxiedBroker, request: Request) -> bool:
        """Whether a response is read whole, and sent by `deliver`."""
        return broker.addresses.may_concern(request) or self._alters_response(broker, request)

    def _alters_response(self, broker: ProxiedBroker, request: Request) -> bool:
        matching = self.matching(broker.broker_id, request.api_name, request.client_id)
        return self.is_paused(broker.broker_id) or any(
            isinstance(fault, ResponseFault) for _, fault in matching
        )

    def _is_readable(self, request: Request) -> bool:
        return request.api_key in self._target.apis and is_known(
            request.api_key, request.api_version
        )

    def _is_recorded(self, request: Request) -> bool:
        return self._recorder is not None and self._recorder.concerns(request)

    # Effects.

    def on_close(self, connection: ClientConnection) -> None:
        """Record that a client is gone."""
        if self._recorder is not None:
            self._recorder.trace.record_close(connection)

    def keeps_request(self, request: Request, size: int) -> bool:
        """Whether a request is read whole, and kept."""
        return self.passed.keeps(request, size)

    def keep_answer(self, seen: SeenRequest, frame: bytes) -> None:
        """Keep the answer to a request."""
        self.passed.add_answer(seen, frame)

    def keep(self, connection: ClientConnection, request: Request, frame: bytes) -> SeenRequest:
        """Keep a request that passes."""
        return self.passed.add(connection.broker.broker_id, connection.peer, request, frame)

    async def deliver(
        self,
        connection: ClientConnection,
        request: Request,
        frame: bytes,
        seen: SeenRequest | None = None,
    ) -> None:
        """Send a response to a request, which may be kept."""
        addresses = connection.broker.addresses
        if addresses.may_concern(request):
            frame = await addresses.rewrite(request, frame)
        await self._send(connection, request, frame, seen)

    async def _send(
        self,
        connection: ClientConnection,
        request: Request,
        frame: bytes,
        seen: SeenRequest | None = None,
    ) -> bool:
        """Send a response, and keep it if the client gets it; return that."""
        broker_id = connection.broker.broker_id
        if seen is None:
            return await self.send(broker_id, connection, request, frame)
        kept = partial(self.passed.add_answer, seen, frame)
        return await self.send(broker_id, connection, request, frame, kept)

    async def serve(
        self, connection: ClientConnection, header: RequestHeader, frame: bytes
    ) -> None:
        """Serve a request, with the active faults."""
        broker_id = connection.broker.broker_id
        await self.wait_while_paused(broker_id)
        assert header.request is not None, "tokens pass"
        if self.loses_request(broker_id, connection, header.request):
            return
        if not self._is_readable(header.request):
            if header.request.api_key == API_VERSIONS:
                refusal = unsupported_version_response(header.request)
                await self._send(connection, header.request, refusal)
                return
            response_frame = await connection.forward(header, frame)
            if response_frame is not None:
                await self._send(connection, header.request, response_frame)
            return
        request = received = decode_request(frame[PREFIX_BYTES:], KNOWN_VERSIONS)
        seen = self.passed.add(broker_id, connection.peer, header.request, frame)
        hooked = await self.passed.hooks.answer(seen)
        if hooked is not None:
            if header.has_response:
                await self._respond(connection, request, hooked, seen)
            return
        recorder = self._recorder if self._is_recorded(request) else None
        received_us = 0 if recorder is None else recorder.trace.now_us()

        async def execute(remaining: Request) -> Response:
            sent = frame if remaining is received else encode_request(remaining)
            entity = None
            try:
                response_frame = await connection.forward(header, sent)
                if response_frame is None:
                    return None
                if is_unsupported_version(request, response_frame):
                    raise _UntouchedResponseError(response_frame)
                body, entity = open_response(request, response_frame)
            finally:
                if recorder is not None:
                    recorder.record_exchange(connection, remaining, entity, received_us)
            rewritten = await connection.broker.addresses.rewrite_entity(request, entity)
            return body if rewritten is entity else rewritten

        code = None
        if self._refuses_sessions(broker_id, request):
            if request.body.session_epoch > FIRST_EPOCH:
                code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            # The broker begins no session, and ends the one that it may name.
            request = replace(request, body=replace(request.body, session_epoch=FINAL_EPOCH))
        try:
            if code is not None:
                errors = self._target.apis[request.api_key].errors
                places = error_places(request.api_key, request.api_version, errors)
                response: Response = error_response(places, request.body, code)
            else:
                response = await self.respond(
                    broker_id,
                    request,
                    connection,
                    lambda remaining: self.frozen_metadata.respond(
                        broker_id, remaining, execute, connection.broker.addresses
                    ),
                    self.topics.names.get,
                )
        except _UntouchedResponseError as untouched:
            await self._send(connection, request, untouched.frame, seen)
            return
        if response is None:
            return
        arrived = await self._respond(connection, request, response, seen)
        if recorder is not None:
            recorder.trace.record_delivery(connection, request, arrived)

    async def _respond(
        self, connection: ClientConnection, request: Request, response: Response, seen: SeenRequest
    ) -> bool:
        assert response is not None
        encoded = encode_response(
            request.api_key, request.api_version, request.correlation_id, response
        )
        return await self._send(connection, request, encoded, seen)

    def _refuses_sessions(self, broker_id: int, request: Request) -> bool:
        """Whether a request is a fetch that has to list its partitions."""
        return (
            request.api_name == _FETCH
            and hasattr(request.body, "session_epoch")
            and any(
                isinstance(fault, ReturnError)
                for _, fault in self.matching(broker_id, _FETCH, request.client_id)
            )
        )
