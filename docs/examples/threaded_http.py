"""Topics over HTTP with long-poll reads, on the standard library's threading server.

python docs/examples/threaded_http.py 8000
curl -d 'hello' localhost:8000/topics/news
curl 'localhost:8000/topics/news?offset=1&wait=30'      # answered at once at SIGTERM
curl localhost:8000/metrics
"""

import json
import signal
import socket
import sys
import threading
from collections import defaultdict
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from weakref import WeakSet

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from purgatory import DelayedOperationPurgatory, PurgatoryClosedError, PurgatoryFullError, metrics

LONGEST_WAIT_S = 60.0
lock = threading.Lock()
topics: defaultdict[str, list[str]] = defaultdict(list)
purgatory = DelayedOperationPurgatory("Fetch", max_pending=500)
connections: WeakSet[socket.socket] = WeakSet()


class Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close waits until they have answered

    def process_request(self, request: Any, client_address: Any) -> None:
        connections.add(request)
        super().process_request(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        try:
            record = self.rfile.read(int(self.headers["Content-Length"] or "none")).decode()
        except ValueError:
            self.send_error(400, "a record must be text in UTF-8, with its Content-Length")
            return
        name = urlsplit(self.path).path.removeprefix("/topics/")
        with lock:
            topics[name].append(record)
            end = len(topics[name])
        purgatory.advance(name, end)  # after the lock: whoever waits may want it
        self.answer({"offset": end - 1}, 201)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/metrics":
            self.answer(generate_latest(), 200, CONTENT_TYPE_LATEST)
        else:
            self.answer(*read(url.path.removeprefix("/topics/"), parse_qs(url.query)))

    def answer(self, body: object, status: int, kind: str = "application/json") -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def read(name: str, query: dict[str, list[str]]) -> tuple[object, int]:
    try:
        offset = max(0, int(query.get("offset", ["0"])[0]))
        wait_s = min(float(query.get("wait", ["0"])[0]), LONGEST_WAIT_S)
        purgatory.wait_for_threshold(name, offset + 1, timeout=wait_s)
    except ValueError:
        return {"error": "offset must be a number, and wait one of seconds"}, 400
    except PurgatoryFullError:
        return {"error": "too many wait already"}, 503
    except (TimeoutError, PurgatoryClosedError):
        pass  # a long poll that ends with nothing is an answer too
    with lock:
        records = topics.get(name, [])[offset:]
    return {"records": records, "next": offset + len(records)}, 200


if __name__ == "__main__":
    metrics.register(purgatory)
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    for end in (signal.SIGTERM, signal.SIGINT):
        signal.signal(end, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever(poll_interval=0.1)
    purgatory.close()  # answers all who wait
    for connection in list(connections):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RD)  # no more requests; the answers still go out
    server.server_close()
