"""Topics over HTTP with long-poll reads, on the standard library's threading server.

python docs/examples/threaded_http.py 8000

curl -d 'hello' localhost:8000/topics/news
curl 'localhost:8000/topics/news?offset=1&wait=30'
curl localhost:8000/metrics
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from purgatory import DelayedOperationPurgatory, PurgatoryClosedError, PurgatoryFullError, metrics

LONGEST_WAIT_S = 60.0

lock = threading.Lock()
topics: defaultdict[str, list[str]] = defaultdict(list)
purgatory = DelayedOperationPurgatory("Fetch", max_pending=500)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        name = urlsplit(self.path).path.removeprefix("/topics/")
        record = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with lock:
            topics[name].append(record)
            end = len(topics[name])
        purgatory.advance(name, end)  # after the lock: whoever waits may want it
        self.answer({"offset": end - 1}, 201)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/metrics":
            self.send(generate_latest(), CONTENT_TYPE_LATEST, 200)
            return
        name = url.path.removeprefix("/topics/")
        query = parse_qs(url.query)
        try:
            offset = max(0, int(query.get("offset", ["0"])[0]))
            wait_s = min(float(query.get("wait", ["0"])[0]), LONGEST_WAIT_S)
        except ValueError:
            self.answer({"error": "offset must be a number, and wait one of seconds"}, 400)
            return
        try:
            purgatory.wait_for_threshold(name, offset + 1, timeout=wait_s)
        except (TimeoutError, PurgatoryClosedError):
            pass  # a long poll that ends with nothing is an answer too
        except PurgatoryFullError:
            self.answer({"error": "too many wait already"}, 503)
            return
        with lock:
            records = topics.get(name, [])[offset:]
        self.answer({"records": records, "next": offset + len(records)}, 200)

    def answer(self, body: dict[str, object], status: int) -> None:
        self.send(json.dumps(body).encode(), "application/json", status)

    def send(self, body: bytes, content_type: str, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    metrics.register(purgatory)
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        purgatory.close()  # answers who waits; their threads end
        server.server_close()
