"""Topics over gRPC with reads that wait, on grpc.aio; messages are JSON, to need no generated code.

    python docs/examples/grpc_aio.py 50051

At SIGTERM all who wait are answered at once.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import defaultdict
from typing import Any

import grpc

from purgatory import AsyncPurgatory, PurgatoryClosedError, PurgatoryFullError

LONGEST_WAIT_S = 60.0

Context = grpc.aio.ServicerContext[Any, Any]


class Topics:
    """The service: ``Append`` adds a record, ``Read`` waits for one."""

    def __init__(self, purgatory: AsyncPurgatory) -> None:
        self.purgatory = purgatory
        self.records: defaultdict[str, list[str]] = defaultdict(list)

    async def append(self, request: bytes, context: Context) -> bytes:
        try:
            message = json.loads(request)
            name, record = str(message["topic"]), str(message["record"])
        except (KeyError, TypeError, ValueError):
            await context.abort(INVALID, 'Append takes {"topic": "news", "record": "hello"}')
        self.records[name].append(record)
        end = len(self.records[name])
        self.purgatory.advance(name, end)  # the state first, then the event
        return json.dumps({"offset": end - 1}).encode()

    async def read(self, request: bytes, context: Context) -> bytes:
        try:
            message = json.loads(request)
            name, offset = str(message["topic"]), int(message.get("offset", 0))
            wait_s = float(message.get("wait", 0))
            if offset < 0 or not wait_s >= 0:
                raise ValueError(message)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            await context.abort(INVALID, 'Read takes {"topic": "news", "offset": 1, "wait": 30}')
        try:
            # A call that the client cancels cancels this task, and so leaves every list.
            await self.purgatory.wait_for_threshold(name, offset + 1, min(wait_s, LONGEST_WAIT_S))
        except (TimeoutError, PurgatoryClosedError):
            pass  # a read that ends with nothing, at its timeout or a shutdown, is an answer too
        except PurgatoryFullError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many wait already")
        records = self.records.get(name, [])[offset:]
        return json.dumps({"records": records, "next": offset + len(records)}).encode()


INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def main(port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncPurgatory("Fetch", max_pending=50_000) as purgatory:
        topics = Topics(purgatory)
        calls = {
            "Append": grpc.unary_unary_rpc_method_handler(topics.append),
            "Read": grpc.unary_unary_rpc_method_handler(topics.read),
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Topics", calls)])
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        print(f"127.0.0.1:{bound}", flush=True)
        await stop.wait()
        await purgatory.aclose()  # first: the server waits for those who wait in it
        await server.stop(grace=5)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
