"""Topics over threaded gRPC with reads that wait; messages are JSON, to need no generated code.

    python docs/examples/threaded_grpc.py 50051

Each read that waits takes a thread of the pool. Two bounds keep `Append` answered: `max_pending` is
below the number of threads, and reads beyond it are refused at once. A call that its client cancels
is an event, too: it leaves the purgatory, and its thread is free. (grpc.aio, in grpc_aio.py, needs
no thread for a read that waits.) At SIGTERM all who wait are answered at once.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import grpc

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    PurgatoryClosedError,
    PurgatoryFullError,
)

THREADS = 100
INVALID = grpc.StatusCode.INVALID_ARGUMENT
records: defaultdict[str, list[str]] = defaultdict(list)
purgatory = DelayedOperationPurgatory("Fetch", max_pending=THREADS - 10)


class NextRecord(DelayedOperation):
    """Completes with the record at ``offset``, or once its client has gone."""

    def __init__(
        self, name: str, offset: int, context: grpc.ServicerContext, timeout_s: float
    ) -> None:
        super().__init__(delay_ms=round(1_000 * timeout_s))
        self.name, self.offset, self.context = name, offset, context

    def try_complete(self) -> bool:
        comes = len(records[self.name]) > self.offset or not self.context.is_active()
        return comes and self.force_complete()


def append(request: bytes, context: grpc.ServicerContext) -> bytes:
    try:
        message = json.loads(request)
        name, record = str(message["topic"]), str(message["record"])
    except (KeyError, TypeError, ValueError):
        context.abort(INVALID, 'Append takes {"topic": "news", "record": "hello"}')
    records[name].append(record)
    purgatory.check_and_complete(name)  # the state first, then the event
    return json.dumps({"offset": len(records[name]) - 1}).encode()


def read(request: bytes, context: grpc.ServicerContext) -> bytes:
    try:
        message = json.loads(request)
        name, offset = str(message["topic"]), int(message.get("offset", 0))
        wait_s = float(message.get("wait", 0))
        if offset < 0 or not wait_s >= 0:
            raise ValueError(message)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        context.abort(INVALID, 'Read takes {"topic": "news", "offset": 1, "wait": 30}')
    operation = NextRecord(name, offset, context, min(wait_s, 60))
    context.add_callback(lambda: purgatory.check_and_complete(operation))
    try:
        purgatory.try_complete_else_watch(operation, [name, operation])
        operation.wait()
    except PurgatoryFullError:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many wait already")
    except PurgatoryClosedError:
        pass  # a read that ends with nothing, at its timeout or a shutdown, is an answer too
    found = records[name][offset:]
    return json.dumps({"records": found, "next": offset + len(found)}).encode()


if __name__ == "__main__":
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = grpc.server(ThreadPoolExecutor(THREADS))
    calls = {
        "Append": grpc.unary_unary_rpc_method_handler(append),
        "Read": grpc.unary_unary_rpc_method_handler(read),
        "Waiting": grpc.unary_unary_rpc_method_handler(
            lambda request, context: json.dumps(purgatory.num_delayed).encode()
        ),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Topics", calls)])
    print(f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{sys.argv[1]}')}", flush=True)
    server.start()
    stop.wait()
    purgatory.close()  # first: the server waits for those who wait in it
    server.stop(grace=5).wait()
