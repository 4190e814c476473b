"""A long poll on Twisted's web server, over asyncio's reactor.

    python docs/examples/long_poll_twisted.py 8000

    curl 'localhost:8000/poll?offset=0'         # waits for the first record, at most 30 s
    curl -d 'hello' localhost:8000/append

`notifyFinish` takes a poll off the purgatory when its client hangs up. The reactor closes all
connections once the triggers before its shutdown are done: theirs ends after the last answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

from twisted.internet import asyncioreactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.main import installReactor
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from purgatory import AsyncPurgatory, PurgatoryClosedError

loop = asyncio.new_event_loop()
reactor: Any = asyncioreactor.AsyncioSelectorReactor(loop)
installReactor(reactor)
log: list[str] = []
polls: set[asyncio.Task[None]] = set()


class Topic(Resource):
    isLeaf = True  # noqa: N815

    def __init__(self, purgatory: AsyncPurgatory) -> None:
        super().__init__()
        self.purgatory = purgatory

    def render_POST(self, request: Request) -> bytes:  # noqa: N802
        log.append(request.content.read().decode())
        self.purgatory.advance("log", len(log))  # the state first, then the event
        return json.dumps({"offset": len(log) - 1}).encode()

    def render_GET(self, request: Request) -> bytes | int:  # noqa: N802
        if request.path == b"/waiting":
            return json.dumps(self.purgatory.num_delayed).encode()
        poll = loop.create_task(self.poll(request))
        polls.add(poll)
        poll.add_done_callback(polls.discard)
        request.notifyFinish().addErrback(lambda _gone: poll.cancel())
        return NOT_DONE_YET

    async def poll(self, request: Request) -> None:
        offset = int(request.args.get(b"offset", [b"0"])[0])
        with suppress(TimeoutError, PurgatoryClosedError):  # a poll that found nothing is answered
            await self.purgatory.wait_for_threshold("log", offset + 1, timeout=30)
        request.write(json.dumps(log[offset:]).encode())
        request.finish()


async def main(port: int) -> None:
    purgatory = AsyncPurgatory("Fetch", max_pending=50_000)

    async def answer_all() -> None:
        await purgatory.aclose()
        await asyncio.gather(*polls, return_exceptions=True)

    reactor.addSystemEventTrigger(
        "before", "shutdown", lambda: Deferred.fromFuture(loop.create_task(answer_all()))
    )
    TCP4ServerEndpoint(reactor, port, interface="127.0.0.1").listen(Site(Topic(purgatory)))


if __name__ == "__main__":
    reactor.callWhenRunning(lambda: loop.create_task(main(int(sys.argv[1]))))
    reactor.run()
