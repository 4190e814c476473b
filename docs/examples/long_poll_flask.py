"""A long poll on Flask, where each request has a thread (or a greenlet).

    gunicorn --worker-class gthread --threads 100 --config docs/examples/gunicorn_shutdown.py \\
        --chdir docs/examples long_poll_flask:app

    curl 'localhost:8000/poll?offset=0'         # waits for the first record, at most 30 s
    curl -d 'hello' localhost:8000/append

WSGI does not tell that a client hung up. gunicorn's and Werkzeug's servers give the connection,
which `wait_for` looks at each second. `max_pending` is below the number of threads, or polls would
take all of them, and the request that wakes them would wait for one.
"""

from __future__ import annotations

import select
import socket
import time

from flask import Flask, Response, abort, jsonify, request

from purgatory import DelayedOperationPurgatory, PurgatoryClosedError, PurgatoryFullError

app = Flask(__name__)
log: list[str] = []
purgatory = DelayedOperationPurgatory("Fetch", max_pending=90)


def wait_for(key: str, value: int, timeout: float) -> None:
    """Wait until ``key`` has reached ``value``, the time is up or the client has gone."""
    connection = request.environ.get("gunicorn.socket") or request.environ.get("werkzeug.socket")
    end = time.monotonic() + timeout
    while (left := end - time.monotonic()) > 0:
        try:
            purgatory.wait_for_threshold(key, value, timeout=min(left, 1))
            return
        except TimeoutError:
            if connection is not None and has_gone(connection):
                return


def has_gone(connection: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0)) and connection.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):  # reset, or closed
        return True


@app.post("/append")
def append() -> Response:
    log.append(request.get_data(as_text=True))
    purgatory.advance("log", len(log))  # the state first, then the event
    return jsonify(offset=len(log) - 1)


@app.get("/poll")
def poll() -> Response:
    offset = request.args.get("offset", 0, type=int)
    if not 0 <= offset <= 2**53:
        abort(400)
    try:
        wait_for("log", offset + 1, timeout=30)
    except PurgatoryClosedError:
        pass  # a poll that found nothing is answered, too
    except PurgatoryFullError:
        abort(503)
    return jsonify(log[offset:])


@app.get("/waiting")
def waiting() -> Response:
    return jsonify(purgatory.num_delayed)
