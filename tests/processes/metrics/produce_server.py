"""A server whose writes wait for a follower, over HTTP on threads, with clients that keep writing.

    PUT /      appends, and answers 200 once the follower has it, or 504 after ``TIMEOUT_S``
    GET /...   the metrics

``stall`` and ``resume`` are the follower's.
"""

from __future__ import annotations

import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from prometheus_client import CollectorRegistry, generate_latest

from purgatory import DelayedOperationPurgatory, metrics

TIMEOUT_S = 0.1
CLIENTS = 4
PARTITION = "topic-0"


class ProduceServer:
    """The server, its follower and its clients, on threads of this process."""

    def __init__(self) -> None:
        self.purgatory = DelayedOperationPurgatory("Produce", max_pending=100)
        self.answered = dict.fromkeys((200, 504), 0)
        self._registry = CollectorRegistry()
        metrics.register(self.purgatory, self._registry)
        self._changed = threading.Condition()
        self._log_end = self._copied = 0
        self._stalled = False
        self._closing = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._follower = threading.Thread(target=self._follow)
        self._clients = [threading.Thread(target=self._write) for _ in range(CLIENTS)]
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def address(self) -> str:
        """The address."""
        return f"127.0.0.1:{self._server.server_port}"

    def stall(self) -> None:
        """Have the follower copy nothing."""
        with self._changed:
            self._stalled = True

    def resume(self) -> None:
        """Have the follower go on."""
        with self._changed:
            self._stalled = False
            self._changed.notify_all()

    def stop_clients(self) -> None:
        """Have the clients end, once they got their last answer."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for client in self._clients:
            client.join()

    def __enter__(self) -> Self:
        for thread in (self._serving, self._follower, *self._clients):
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_clients()
        self._follower.join()
        self.purgatory.close()
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

    def _follow(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._follower_may_go_on)
                if self._closing and self._log_end == self._copied:
                    return
                copied = self._copied = self._log_end
            self.purgatory.advance(PARTITION, copied)

    def _follower_may_go_on(self) -> bool:
        return self._closing or (not self._stalled and self._log_end > self._copied)

    def _write(self) -> None:
        connection = HTTPConnection(self.address, timeout=30)
        while not self._closing:
            connection.request("PUT", "/", body=b"record")
            answer = connection.getresponse()
            answer.read()
            with self._changed:
                self.answered[answer.status] += 1
        connection.close()

    def _append(self) -> int:
        with self._changed:
            self._log_end += 1
            self._changed.notify_all()
            return self._log_end

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                offset = server._append()
                try:
                    server.purgatory.wait_for_threshold(PARTITION, offset, TIMEOUT_S)
                except TimeoutError:
                    self._answer(504, b"not copied in time")
                else:
                    self._answer(200, b"copied")

            def do_GET(self) -> None:
                self._answer(200, generate_latest(server._registry))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        return Handler
