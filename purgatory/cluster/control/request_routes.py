"""The requests of clients, waits and moves over HTTP, for tests in any language.

Of a cluster and of a proxy:

    GET    /requests?api=Produce&client_id=&topic=&broker=   the latest ones, with their answers
    DELETE /requests                                         forget them
    GET    /requests/live?api=...       a stream: each one when it is answered
    POST   /requests/held               a stream: each one when it comes, and waits for
    POST   /requests/NUMBER             {"answer": {...}}, {"error": "NOT_COORDINATOR"}, {}: passes
    POST   /wait                        {"kind": "group_stable", "group_id": "g", "timeout_s": 10}

Of a cluster alone:

    POST   /move                        {"kind": "controller", "to": 2}: see `steering.moves`
    POST   /brokers                     adds one; DELETE /brokers/ID removes one

Streams are lines of JSON. A request that is held passes on after ``hold_s`` (10) seconds, and when
its stream ends. ``delay_s`` beside an answer, an error or nothing is a delay. A wait that ends
without is 408, with what was there instead.

Ground rules: everything happens on the event loop's thread; a stream has a bounded queue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from purgatory.cluster.cluster import Cluster
from purgatory.cluster.steering.moves import parse_move
from purgatory.cluster.steering.request_hooks import Delay
from purgatory.cluster.steering.request_methods import RequestMethods
from purgatory.cluster.steering.seen_requests import RequestFilter, SeenRequest, checked_filter
from purgatory.cluster.steering.waits import parse_wait
from purgatory.kafka.errors import ClusterError

MOST_QUEUED = 1_000
"""The requests that wait to be sent in a stream; with one more it ends."""

_FILTERS = ("api", "client_id", "topic", "broker")
_ANSWERS = ("answer", "error", "delay_s")
_HOLD_S = 10.0
_CHECK_S = 1.0


class RequestRoutes:
    """Serves the requests of a cluster or a proxy, and waits for it."""

    def __init__(self, served: RequestMethods) -> None:
        self._served = served
        self._held: dict[int, tuple[SeenRequest, asyncio.Future[Any]]] = {}

    def add_to(self, app: web.Application) -> None:
        """Add the routes to ``app``."""
        app.add_routes(
            [
                web.get("/requests", self._list),
                web.delete("/requests", self._clear),
                web.get("/requests/live", self._live, allow_head=False),
                web.post("/requests/held", self._hold),
                web.post("/requests/{number}", self._answer),
                web.post("/wait", self._wait),
            ]
        )

    async def _list(self, request: web.Request) -> web.Response:
        found = self._served.request_log.matching(self._filter(request.query))
        return web.json_response({"requests": [seen.as_dict() for seen in found]})

    async def _clear(self, request: web.Request) -> web.Response:
        self._served.clear_requests()
        return web.json_response({})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        chosen, log = self._filter(request.query), self._served.request_log
        queue: asyncio.Queue[SeenRequest | None] = asyncio.Queue(MOST_QUEUED)

        def listen(seen: SeenRequest) -> None:
            if chosen.selects(seen, log.topic_of):
                _put(queue, seen)

        log.listeners.append(listen)
        try:
            return await _stream(request, queue)
        finally:
            log.listeners.remove(listen)

    async def _hold(self, request: web.Request) -> web.StreamResponse:
        body = await json_body(request)
        hold_s = body.pop("hold_s", _HOLD_S)
        if type(hold_s) not in (int, float) or not hold_s > 0:
            raise ClusterError(f"hold_s={hold_s!r}: a number of seconds above 0")
        chosen = self._filter(body)
        queue: asyncio.Queue[SeenRequest | None] = asyncio.Queue(MOST_QUEUED)
        held: set[int] = set()

        async def hold(seen: SeenRequest) -> Any:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._held[seen.number] = seen, answer
            held.add(seen.number)
            try:
                _put(queue, seen)
                async with asyncio.timeout(hold_s):
                    return await answer
            except TimeoutError:
                return None
            finally:
                held.discard(seen.number)
                del self._held[seen.number]

        hook = self._served.hooks.add(hold, chosen)
        try:
            return await _stream(request, queue)
        finally:
            hook.end()
            for number in held:
                _set(self._held[number][1], None)

    async def _answer(self, request: web.Request) -> web.Response:
        number, body = request.match_info["number"], await json_body(request)
        found = next((pair for key, pair in self._held.items() if str(key) == number), None)
        if found is None:
            raise ClusterError(f"no request {number[:20]} is held")
        _set(found[1], _result(found[0], body))
        return web.json_response({"number": found[0].number})

    async def _wait(self, request: web.Request) -> web.Response:
        wait, timeout_s = parse_wait(await json_body(request))
        try:
            await self._served.wait_for.until(wait, timeout_s)
        except TimeoutError as error:
            return web.json_response({"error": str(error)}, status=408)
        return web.json_response({})

    def _filter(self, given: Mapping[str, Any]) -> RequestFilter:
        unknown = [name for name in given if name not in _FILTERS]
        if unknown:
            raise ClusterError(f"takes no {unknown[0]!r}; it takes {', '.join(_FILTERS)}")
        values = dict(given)
        broker = values.get("broker")
        if isinstance(broker, str) and broker.isdecimal() and len(broker) < 10:
            values["broker"] = int(broker)
        return checked_filter(self._served.apis, **values)


class ClusterRoutes(RequestRoutes):
    """Serves also the moves of a cluster, and its brokers."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._cluster = cluster

    def add_to(self, app: web.Application) -> None:
        super().add_to(app)
        app.add_routes(
            [
                web.post("/move", self._move),
                web.post("/brokers", self._add_broker),
                web.delete("/brokers/{broker}", self._remove_broker),
            ]
        )

    async def _move(self, request: web.Request) -> web.Response:
        parse_move(await json_body(request))(self._cluster.move)
        return web.json_response({})

    async def _add_broker(self, request: web.Request) -> web.Response:
        return web.json_response({"broker": await self._cluster.add_broker()})

    async def _remove_broker(self, request: web.Request) -> web.Response:
        broker = request.match_info["broker"]
        number = int(broker) if broker.isdecimal() and len(broker) < 10 else -1
        try:
            await self._cluster.remove_broker(number)
        except TimeoutError as error:
            return web.json_response({"error": str(error)}, status=408)
        return web.json_response({"broker": number})


def _result(seen: SeenRequest, body: Mapping[str, Any]) -> Any:
    """Return the result of a hook for the body of an answer."""
    unknown = [name for name in body if name not in _ANSWERS]
    if unknown:
        raise ClusterError(f"takes no {unknown[0]!r}; it takes {', '.join(_ANSWERS)}")
    if "answer" in body and "error" in body:
        raise ClusterError("answer and error: one of them")
    answer = None
    if "answer" in body:
        if not isinstance(body["answer"], dict):
            raise ClusterError("answer: an object with the answer's fields")
        answer = seen.answer_with(body["answer"])
    elif "error" in body:
        answer = seen.refusal(body["error"])
    delay_s = body.get("delay_s", 0)
    if type(delay_s) not in (int, float) or not delay_s >= 0:
        raise ClusterError(f"delay_s={delay_s!r}: a number of seconds, 0 or more")
    return Delay(delay_s, answer) if delay_s else answer


async def json_body(request: web.Request) -> dict[str, Any]:
    """Return the body of a request, an object; that of an empty one is empty.

    Raises:
        ClusterError: the body is no object of JSON.
    """
    try:
        body = json.loads(await request.text() or "{}")
    except (ValueError, LookupError, RecursionError) as error:  # also of charsets and brackets
        raise ClusterError(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ClusterError("the body is an object of JSON")
    return body


def _put(queue: asyncio.Queue[SeenRequest | None], seen: SeenRequest) -> None:
    """Queue a request; a full queue ends its stream."""
    if queue.full():
        queue.get_nowait()
        seen_or_end = None
    else:
        seen_or_end = seen
    queue.put_nowait(seen_or_end)


def _set(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


async def _stream(
    request: web.Request, queue: asyncio.Queue[SeenRequest | None]
) -> web.StreamResponse:
    """Send requests as lines of JSON until the reader is gone."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    while request.transport is not None and not request.transport.is_closing():
        try:
            async with asyncio.timeout(_CHECK_S):
                seen = await queue.get()
        except TimeoutError:
            continue
        if seen is None:
            line: dict[str, Any] = {"error": f"more than {MOST_QUEUED} requests were not read"}
        else:
            line = seen.as_dict()
        try:
            await response.write(json.dumps(line).encode() + b"\n")
        except ConnectionError:
            break
        if seen is None:
            break
    return response
