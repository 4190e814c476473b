"""Hooks: functions that see each request of a kind before the broker, and may answer it.

    def late(request):
        return Delay(0.2)

    hook = cluster.on_request(late, api="Fetch", count=3)

A hook returns None, and the request passes on; an answer (`SeenRequest.answer_with`,
`SeenRequest.refusal`, or a mapping of an answer's fields), which the client gets in place of the
broker's; or a `Delay`, after which it passes on or is answered. The first one that answers decides.

Ground rules
------------
* Hooks are called on the event loop's thread, and must not block it; coroutine functions may wait.
* An error of a hook is logged, and the request passes on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from purgatory.cluster.protocol.connection import Response
from purgatory.cluster.steering.seen_requests import RequestFilter, RequestLog, SeenRequest
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.active_faults import Endable
from timer.durations import checked_timeout_s


class Delay(NamedTuple):
    """A hook's result: after so many seconds (or a timedelta) the request passes on.

    Args:
        seconds: from 0 on.
        answer: the client gets this instead; None: the broker's own answer.
    """

    seconds: float | timedelta
    answer: Any = None


HookResult = None | Delay | Mapping[str, Any] | Any
OnRequest = Callable[[SeenRequest], HookResult | Awaitable[HookResult]]

_log = Logger("purgatory.cluster")


class RequestHook(Endable):
    """A hook that is installed, until `end`, the end of a ``with`` block, or ``count`` uses."""

    def __init__(
        self,
        function: OnRequest,
        chosen: RequestFilter,
        count: int | None,
        on_end: Callable[[RequestHook], None],
    ) -> None:
        self.function = function
        self.chosen = chosen
        self.count = count
        self.uses = 0
        """The number of requests that it was called with."""
        self.active = True
        self._on_end = on_end

    def __repr__(self) -> str:
        state = "active" if self.active else "ended"
        return f"<{type(self).__name__} of {self.chosen}: {self.uses} uses, {state}>"

    def use(self) -> None:
        """Count a call; the last of ``count`` ends it."""
        self.uses += 1
        if self.uses == self.count:
            self.end()

    def end(self) -> None:
        """Remove it. Ending twice has no effect."""
        if self.active:
            self.active = False
            self._on_end(self)


class RequestHooks:
    """The hooks of a cluster.

    Args:
        log: its requests.
    """

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self.active: list[RequestHook] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.active)} active>"

    def add(
        self, function: OnRequest, chosen: RequestFilter, count: int | None = None
    ) -> RequestHook:
        """Install a hook, behind those that are there.

        Raises:
            ClusterError: the count is below 1.
        """
        if count is not None and (type(count) is not int or count < 1):
            raise ClusterError(f"count={count!r}: a whole number from 1 on, or left out for all")
        hook = RequestHook(function, chosen, count, self.active.remove)
        self.active.append(hook)
        return hook

    async def answer(self, seen: SeenRequest) -> Response:
        """Call the hooks that select a request; return the answer of the first, or None."""
        for hook in list(self.active):
            if not hook.active or not hook.chosen.selects(seen, self._log.topic_of):
                continue
            hook.use()
            try:
                answer = await self._call(hook, seen)
            except Exception as error:
                _log.error("request_hook_failed", request=str(seen), exc_info=error)
                continue
            if answer is not None:
                return answer
        return None

    async def _call(self, hook: RequestHook, seen: SeenRequest) -> Response:
        result = hook.function(seen)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, Delay):
            await asyncio.sleep(checked_timeout_s(result.seconds) or 0)
            result = result.answer
        return seen.answer_with(result) if isinstance(result, Mapping) else result
