"""The control of a cluster: its responses and refusals.

Requests of browsers to another origin are sent byte for byte; Chromium itself sends some, too.
"""

from __future__ import annotations

import asyncio
import gzip
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from purgatory.cluster import Cluster, ClusterConfig, ClusterError, ThreadedCluster
from purgatory.cluster.control.control import Control
from purgatory.view.page_server import is_loopback
from tests.browser.pipeline.browsing import headless_browser

_FAULT = {"kind": "stall_follower", "broker": 2}
_JSON = {"Content-Type": "application/json"}
_TOKEN = {"Authorization": "Bearer a-token"}

Ask = Callable[..., Awaitable[tuple[int, Any]]]


def _run(main: Callable[[Ask, Control, Cluster], Awaitable[None]], **options: Any) -> None:
    """Run ``main`` with a cluster and its control; ``ask`` returns the status and the body."""

    async def run() -> None:
        async with Cluster(ClusterConfig(brokers=2)) as cluster, ClientSession() as session:
            control = Control(cluster, **options)
            await control.start()

            async def ask(
                method: str, path: str, body: object = None, at: str | None = None, **headers: str
            ) -> tuple[int, Any]:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                data = json.dumps(body) if isinstance(body, dict) else body
                url = f"http://127.0.0.1:{control.port}{path}" if at is None else at
                async with session.request(method, url, data=data, headers=named) as answer:
                    text = await answer.text()
                    is_json = answer.content_type == "application/json"
                    return answer.status, json.loads(text) if is_json else text

            try:
                await main(ask, control, cluster)
            finally:
                await control.stop()

    asyncio.run(run())


def test_control_begins_lists_and_ends_faults() -> None:
    async def main(ask: Ask, control: Control, cluster: Cluster) -> None:
        status, fault = await ask("POST", "/faults", _FAULT, **_JSON)
        assert (status, fault["kind"]) == (200, "stall_follower")
        status, state = await ask("GET", "/state")
        assert (status, [one["kind"] for one in state["faults"]]) == (200, ["stall_follower"])
        assert (await ask("DELETE", f"/faults/{fault['number']}", **_JSON))[0] == 200
        assert (await ask("DELETE", "/faults", **_JSON)) == (200, {"ended": 0})
        await cluster.kill(1)
        assert (await ask("POST", "/brokers/1/revive", **_JSON)) == (200, {"broker": 1})
        status, wrong = await ask("POST", "/faults", "{", **_JSON)
        assert (status, "JSON" in wrong["error"]) == (400, True)
        charset = {"Content-Type": "application/json; charset=none"}
        assert (await ask("POST", "/faults", _FAULT, **charset))[0] == 400
        for broker in ("one", "%C2%B2", "1" * 5_000):
            status, wrong = await ask("POST", f"/brokers/{broker}/revive", **_JSON)
            assert (status, "a broker is a number" in wrong["error"]) == (400, True)

    _run(main)


def test_compressed_request_bodies_are_refused() -> None:
    async def main(ask: Ask, control: Control, cluster: Cluster) -> None:
        status, wrong = await ask("POST", "/faults", "[" * 100_000, **_JSON)
        assert (status, "JSON" in wrong["error"]) == (400, True)
        bomb = gzip.compress(bytes(64 * 1024 * 1024))
        assert (await ask("POST", "/faults", bomb, Content_Encoding="gzip", **_JSON))[0] == 413

    _run(main)


def _changes(port: int) -> list[tuple[str, str, object, Mapping[str, str], int]]:
    """Return requests that a page elsewhere can have sent, and how each is refused."""
    page = {"Origin": "http://evil.example"}
    simple, form = "text/plain;charset=UTF-8", "application/x-www-form-urlencoded"
    fault = json.dumps(_FAULT)
    return [
        # fetch(..., {method: "POST", mode: "no-cors", body}) and a form: no browser asks before.
        ("POST", "/faults", fault, {"Content-Type": simple, **page}, 403),
        ("POST", "/faults", fault + "=", {"Content-Type": form, **page}, 403),
        ("POST", "/faults", fault, {"Content-Type": "multipart/form-data", **page}, 403),
        ("POST", "/brokers/1/revive", None, {"Content-Type": form, **page}, 403),
        # A page without an origin of its own: in a sandbox, or a file.
        ("POST", "/faults", fault, {"Content-Type": simple, "Origin": "null"}, 403),
        # One that sends none.
        ("POST", "/faults", fault, {"Content-Type": simple}, 415),
        ("POST", "/faults", fault, {}, 415),
        ("POST", "/brokers/1/revive", None, {}, 415),
        ("DELETE", "/faults", None, {}, 415),
        # The preflight request before JSON or DELETE, and the request that would follow.
        ("OPTIONS", "/faults", None, {"Access-Control-Request-Method": "POST", **page}, 403),
        ("POST", "/faults", fault, {**_JSON, **page}, 403),
        ("DELETE", "/faults", None, {**_JSON, **page}, 403),
        ("GET", "/state", None, page, 403),
        # Another port of this machine is another origin.
        ("POST", "/faults", fault, {**_JSON, "Origin": f"http://127.0.0.1:{port + 1}"}, 403),
        # DNS rebinding: the page's own name leads to this machine.
        ("GET", "/state", None, {"Host": "evil.example"}, 403),
        ("GET", "/metrics", None, {"Host": f"evil.example:{port}"}, 403),
        (
            "POST",
            "/faults",
            fault,
            {**_JSON, "Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"},
            403,
        ),
        ("GET", "/state", None, {"Host": "127.0.0.1.evil.example"}, 403),
        ("GET", "/state", None, {"Host": "localhost.evil.example"}, 403),
        ("GET", "/state", None, {"Host": "[::1"}, 403),
    ]


def test_requests_of_foreign_origins_are_refused() -> None:
    async def main(ask: Ask, control: Control, cluster: Cluster) -> None:
        await ask("POST", "/faults", _FAULT, **_JSON)
        for method, path, body, headers, refused in _changes(control.port):
            status, answer = await ask(method, path, body, **headers)
            assert status == refused, (method, path, headers, answer)
            assert set(answer) == {"error"}
        assert [begun.fault.kind for begun in cluster.fault.active] == ["stall_follower"], (
            "as it was"
        )

    _run(main)


def test_own_names_and_origin_are_accepted() -> None:
    async def main(ask: Ask, control: Control, cluster: Cluster) -> None:
        port = control.port
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "10.1.2.3"):
            assert (await ask("GET", "/state", Host=host))[0] == 200, host
            own = {**_JSON, "Host": host, "Origin": f"http://{host}"}
            assert (await ask("DELETE", "/faults", **own))[0] == 200, host

    _run(main)


def test_requests_without_the_token_are_refused() -> None:
    async def main(ask: Ask, control: Control, cluster: Cluster) -> None:
        for method, path, body in (
            ("GET", "/state", None),
            ("GET", "/metrics", None),
            ("POST", "/faults", _FAULT),
            ("DELETE", "/faults", None),
            ("POST", "/brokers/1/revive", None),
            ("GET", "/nowhere", None),
        ):
            for wrong in ({}, {"Authorization": "Bearer another"}, {"Authorization": "a-token"}):
                assert (await ask(method, path, body, **_JSON, **wrong))[0] == 401
        assert list(cluster.fault.recent) == []
        assert (await ask("POST", "/faults", _FAULT, **_JSON, **_TOKEN))[0] == 200
        assert (await ask("GET", "/state", Host="named.example", **_TOKEN))[0] == 200
        foreign = {"Origin": "http://evil.example"}
        assert (await ask("DELETE", "/faults", **_JSON, **_TOKEN, **foreign))[0] == 403

    _run(main, token="a-token")


def test_control_beyond_loopback_always_has_a_token() -> None:
    async def main(ask: Ask, control: Control, cluster: Cluster) -> None:
        assert control.token is not None
        assert len(control.token) >= 32
        assert (await ask("GET", "/state"))[0] == 401
        known = {"Authorization": f"Bearer {control.token}"}
        assert (await ask("GET", "/state", **known))[0] == 200

    _run(main, host="0.0.0.0")
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "", "192.168.1.1", "localhost.example", "named.example"):
        assert not is_loopback(host)


def test_metrics_port_needs_no_token() -> None:
    async def main(ask: Ask, control: Control, cluster: Cluster) -> None:
        status, text = await ask("GET", "", at=control.metrics_url)
        assert status == 200
        for purgatory in ("Produce", "Fetch", "Heartbeat"):
            for broker in cluster.brokers:
                labels = f'{{broker="{broker}",purgatory="{purgatory}"}}'
                assert f"purgatory_pending_operations{labels}" in text
                assert f'timer_tasks{{broker="{broker}",timer="{purgatory}"}}' in text
        state = control.metrics_url.replace("/metrics", "/state")
        assert (await ask("GET", "", at=state))[0] == 404

    _run(main, token="a-token", metrics_port=0)


# ---- in Chromium


@contextmanager
def _page(html: str) -> Iterator[str]:
    """Serve one page from an origin of its own."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_ATTACKS = """
(async () => {
  const at = "http://127.0.0.1:%d", fault = JSON.stringify({kind: "stall_follower", broker: 2});
  const done = [];
  const attack = async (name, ...sent) => {
    try { const answer = await fetch(...sent); done.push([name, answer.type]); }
    catch (error) { done.push([name, "blocked"]); }
  };
  const json = {"Content-Type": "application/json"};
  await attack("simple", at + "/faults", {method: "POST", mode: "no-cors", body: fault});
  await attack("beacon", at + "/brokers/1/revive", {method: "POST", mode: "no-cors"});
  await attack("json", at + "/faults", {method: "POST", headers: json, body: fault});
  await attack("delete", at + "/faults", {method: "DELETE", headers: json});
  await attack("state", at + "/state");
  navigator.sendBeacon(at + "/faults", fault);
  const form = document.createElement("form");
  form.method = "POST"; form.enctype = "text/plain"; form.action = at + "/faults";
  form.target = "inside";
  const field = document.createElement("input");
  field.name = fault.slice(0, -1) + ', "x": "'; field.value = '"}'; form.append(field);
  const inside = document.createElement("iframe");
  inside.name = "inside"; document.body.append(inside, form);
  const sent = new Promise(resolve => inside.onload = resolve);
  form.submit();
  await sent;
  return done;
})()
"""


class _Cluster:
    """``purgatory cluster`` as a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "purgatory", "cluster", "--brokers", "2", "--port", "0"]
        command += ["--control-port", "0", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said: dict[str, str] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, _, value = line.strip().partition(": ")
            self.said[name] = value.split(" ")[0]
            if name == ("metrics" if "--metrics-port" in options else "control"):
                break

    def __enter__(self) -> _Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)

    def fault(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``purgatory fault`` against it."""
        command = [sys.executable, "-m", "purgatory", "fault", "--control", self.said["control"]]
        return subprocess.run(
            [*command, *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )


def test_printed_addresses_are_served() -> None:
    """After the first line, all addresses are served."""
    with socket.socket() as control, socket.socket() as metrics:
        for one in (control, metrics):
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in (control, metrics)]
    command = [sys.executable, "-m", "purgatory", "cluster", "--brokers", "2", "--port", "0"]
    command += ["--control-port", str(ports[0]), "--metrics-port", str(ports[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            name, _, servers = process.stdout.readline().strip().partition("=")
            assert name == "bootstrap.servers"
            ports += [int(one.rpartition(":")[2]) for one in servers.split(",")]
            for port in ports:
                socket.create_connection(("127.0.0.1", port)).close()
        finally:
            process.terminate()


@pytest.mark.slow
def test_foreign_page_in_chromium_can_not_change_a_cluster(tmp_path: Path) -> None:
    with (
        _Cluster() as cluster,
        _page("<!doctype html><title>elsewhere</title>") as elsewhere,
        headless_browser(tmp_path / "profile") as browser,
    ):
        assert cluster.fault("delay-responses", "1", "--delay", "1ms").returncode == 0
        browser.load(elsewhere)
        assert browser.evaluate("document.title") == "elsewhere"
        port = int(cluster.said["control"].rpartition(":")[2])
        attacks = dict(browser.evaluate(_ATTACKS % port))
        # The response to a request without CORS is opaque: the page does not even see the refusal.
        assert attacks == {
            "simple": "opaque",
            "beacon": "opaque",
            "json": "blocked",
            "delete": "blocked",
            "state": "blocked",
        }
        listed = cluster.fault("list").stdout
        assert "delay_responses" in listed, "nobody ended it"
        assert "stall_follower" not in listed


@pytest.mark.slow
def test_command_line_sends_its_token() -> None:
    options = ["--control-token", "a-token", "--metrics-port", "0"]
    with _Cluster(*options) as cluster:
        refused = cluster.fault("list")
        assert refused.returncode == 2
        assert "token" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert cluster.fault("--token", "a-token", "list").stdout == "no fault is active\n"
        known = cluster.fault("list", PURGATORY_CONTROL_TOKEN="a-token")
        assert known.stdout == "no fault is active\n"
        assert cluster.said["metrics"].endswith("/metrics")
        assert "control token" not in cluster.said, "its giver knows it"
    with _Cluster("--control-host", "0.0.0.0", "--metrics-port", "0") as cluster:
        token = cluster.said["control token"]
        cluster.said["control"] = cluster.said["control"].replace("0.0.0.0", "127.0.0.1")
        assert cluster.fault("list").returncode == 2
        assert cluster.fault("--token", token, "list").returncode == 0


def test_threaded_cluster_serves_its_control_until_it_stops() -> None:
    with ThreadedCluster(ClusterConfig(brokers=2)) as cluster:
        address = cluster.serve_control(token="told")
        assert address.endswith("/#token=told")
        url = address.removesuffix("/#token=told")
        refused = _asked(f"{url}/state", None)
        asked = _asked(f"{url}/state", "told")
        assert (refused[0], asked[0]) == (401, 200)
        assert len(json.loads(asked[1])["brokers"]) == 2
        assert b"<html" in _asked(f"{url}/", "told")[1].lower()
        port = int(url.rpartition(":")[2])
        with pytest.raises(ClusterError, match=rf"can't be served at 127.0.0.1:{port}"):
            cluster.serve_control(port=port)
        with pytest.raises(ClusterError, match="can't be served at port 70000: 0 to 65535"):
            cluster.serve_control(port=70_000)
        assert _asked(f"{url}/state", "told")[0] == 200, "the first goes on"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    with pytest.raises(ClusterError, match="does not run"):
        cluster.serve_control()


def test_call_ends_when_another_thread_stops_the_cluster() -> None:
    def call_until_refused(cluster: ThreadedCluster, refused: list[str]) -> None:
        try:
            while True:
                cluster.state()
        except ClusterError as error:
            refused.append(str(error))

    for _ in range(5):
        refused: list[str] = []
        with ThreadedCluster(ClusterConfig(brokers=1)) as cluster:
            callers = [
                threading.Thread(target=call_until_refused, args=(cluster, refused), daemon=True)
                for _ in range(4)
            ]
            for caller in callers:
                caller.start()
            cluster.state()
        for caller in callers:
            caller.join(30)
        assert refused == ["the cluster does not run"] * 4


def _asked(url: str, token: str | None) -> tuple[int, bytes]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=30
        ) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
