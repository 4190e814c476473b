"""The requests that pass a proxy, with their answers: kept, answered by hooks, and waited for.

Frames are passed on in parts as they come; a kept one is complete when its last part goes.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from purgatory.cluster.faulty_responses import ServedApi, TopicOf
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.steering import ANSWERS, REQUESTS
from purgatory.cluster.steering.request_hooks import RequestHooks
from purgatory.cluster.steering.request_methods import RequestMethods
from purgatory.cluster.steering.seen_requests import MOST_BYTES, RequestLog, SeenRequest
from purgatory.cluster.steering.waits import (
    ClusterWaits,
    FaultUses,
    Missing,
    RequestsCame,
    Wait,
)
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.active_faults import ActiveFaults
from purgatory.kafka.faults.fault import kafka_api_name
from purgatory.proxy.addresses import is_known

_PREFIX_BYTES = 4


class PassedRequests(RequestMethods):
    """The requests of a proxy.

    Args:
        apis: the rows of the APIs.
        topic_of: returns a topic's name by its id.
        fault: the faults, for waits.
        refuse: returns the error of a wait that isn't possible, by its kind and the reason.
    """

    def __init__(
        self,
        apis: Mapping[int, ServedApi],
        topic_of: TopicOf,
        fault: ActiveFaults,
        refuse: Callable[[str, str], ClusterError],
    ) -> None:
        self._refuse = refuse
        self.apis = apis
        self.fault = fault
        self.request_log = RequestLog(apis, topic_of)
        self.hooks = RequestHooks(self.request_log)
        self.wait_for = ClusterWaits(self._watch, "proxy")

    def _watch(self, wait: Wait) -> Missing:
        if not isinstance(wait, RequestsCame | FaultUses):
            reason = "the brokers tell it nothing: ask them, with a client, until it is so"
            raise self._refuse(wait.kind, reason)
        return wait.watch(self)

    def keeps(self, request: Request, size: int) -> bool:
        """Whether a request whose frame has this size is kept."""
        return (
            size <= MOST_BYTES
            and request.api_key in self.apis
            and is_known(request.api_key, request.api_version)
        )

    def may_hook(self, broker_id: int, request: Request) -> bool:
        """Whether a hook may select a request, which isn't decoded yet."""
        if not self.hooks.active:
            return False
        api, client_id = kafka_api_name(request.api_name), request.client_id
        return any(
            hook.chosen.api in (None, api)
            and hook.chosen.client_id in (None, client_id)
            and hook.chosen.broker in (None, broker_id)
            for hook in self.hooks.active
        )

    def add(self, broker_id: int, peer: str, request: Request, frame: bytes) -> SeenRequest:
        """Keep a request, a frame with its length."""
        undecoded = replace(request, body=frame[_PREFIX_BYTES:])
        seen = self.request_log.add(broker_id, peer, undecoded, len(frame))
        self.wait_for.notify(REQUESTS)
        return seen

    def add_answer(self, seen: SeenRequest, frame: bytes) -> None:
        """Keep the answer that the client got."""
        self.request_log.add_answer(seen, frame)
        self.wait_for.notify(ANSWERS)
