"""A long poll on Tornado.

    python docs/examples/long_poll_tornado.py 8000

    curl 'localhost:8000/poll?offset=0'         # waits for the first record, at most 30 s
    curl -d 'hello' localhost:8000/append

`on_connection_close` takes a poll off the purgatory when its client hangs up. At SIGTERM all polls
are answered at once.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from purgatory import AsyncPurgatory, PurgatoryClosedError

log: list[str] = []
polls: set[Poll] = set()


class Handler(RequestHandler):
    def initialize(self, purgatory: AsyncPurgatory) -> None:
        self.purgatory = purgatory


class Append(Handler):
    def post(self) -> None:
        log.append(self.request.body.decode())
        self.purgatory.advance("log", len(log))  # the state first, then the event
        self.finish({"offset": len(log) - 1})


class Poll(Handler):
    wait: asyncio.Task[int] | None = None

    async def get(self) -> None:
        offset = int(self.get_query_argument("offset", "0"))
        self.wait = asyncio.ensure_future(
            self.purgatory.wait_for_threshold("log", offset + 1, timeout=30)
        )
        polls.add(self)
        try:
            await self.wait
        except (TimeoutError, PurgatoryClosedError):
            pass  # a poll that found nothing is answered, too
        except asyncio.CancelledError:
            return  # nobody is there to be answered
        finally:
            polls.discard(self)
        self.finish(json.dumps(log[offset:]))

    def on_connection_close(self) -> None:
        if self.wait is not None:
            self.wait.cancel()


class Waiting(Handler):
    def get(self) -> None:
        self.finish(json.dumps(self.purgatory.num_delayed))


async def main(port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncPurgatory("Fetch", max_pending=50_000) as purgatory:
        routes = {"/append": Append, "/poll": Poll, "/waiting": Waiting}
        server = HTTPServer(
            Application([(path, one, {"purgatory": purgatory}) for path, one in routes.items()])
        )
        server.listen(port, "127.0.0.1")
        await stop.wait()
        server.stop()
        await purgatory.aclose()
        while polls:  # Tornado does not wait for handlers
            await asyncio.sleep(0)
        await server.close_all_connections()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
