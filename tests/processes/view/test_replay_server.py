"""The server of a traced run: its routes, nonsense that is asked, who may ask, and the command."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from purgatory.simulation import Simulation, apply_overrides, load_scenario
from purgatory.view.errors import ViewError
from purgatory.view.page_server import check_address
from purgatory.view.replay_server import ReplayServer
from purgatory.view.time_travel import TracedRun
from tests.processes.cli.conftest import RunCommand

Ask = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "trace"
    loaded = apply_overrides(load_scenario("steady"), duration_ms=1_000)
    Simulation(loaded, trace_folder=folder).run()
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> TracedRun:
    return TracedRun(folder)


def served(run: TracedRun, ask_all: Callable[[Ask], Awaitable[None]], **headers: str) -> None:
    """Serve a run, and have it asked: a path gives a status and what was answered."""

    async def serve() -> None:
        server = ReplayServer(run)
        await server.start()
        try:
            async with aiohttp.ClientSession(headers=headers) as session:

                async def ask(path: str) -> tuple[int, Any]:
                    async with session.get(f"{server.url}{path}") as answer:
                        is_json = answer.content_type == "application/json"
                        return answer.status, await (answer.json() if is_json else answer.text())

                await ask_all(ask)
        finally:
            await server.stop()

    asyncio.run(serve())


def test_each_route_returns_the_runs_data(run: TracedRun) -> None:
    async def ask_all(ask: Ask) -> None:
        assert await ask("view/about") == (200, run.about())
        assert (await ask("view/state?at_us=500000"))[1]["pending"] == run.state(500_000)["pending"]
        changes = await ask("view/changes?from_us=1000&until_us=90000&limit=50")
        assert changes == (200, run.changes(1_000, 90_000, 50))
        assert await ask("view/next?after_us=5000") == (200, {"at_us": run.next(5_000)})
        assert await ask("view/previous?before_us=5000") == (200, {"at_us": run.previous(5_000)})
        latest = (await ask("view/request-traces?at_us=900000&limit=3"))[1]["request_traces"]
        assert len(latest) == 3
        assert [one["name"] for one in (await ask("view/bookmarks"))[1]["bookmarks"]] == [
            "the worst moment",
            "the longest wait",
            "the first anomaly",
        ]
        assert (await ask("view/request-trace?topic=events&partition=0&offset=1"))[0] == 200
        status, answer = await ask("view/request-trace?topic=none&partition=0&offset=1")
        assert status == 404 and "events" in answer["error"]
        assert (await ask(""))[0] == 200 and (await ask("wheel/walk"))[0] == 200

    served(run, ask_all)


@pytest.mark.parametrize(
    "nonsense", ["abc", "-1", "1e30", "", "1.5", "9" * 400, "%D9%A1", "1_0", "9007199254740993"]
)
def test_refusal_of_an_invalid_request_lists_valid_values(run: TracedRun, nonsense: str) -> None:
    async def ask_all(ask: Ask) -> None:
        for path in (
            f"view/state?at_us={nonsense}",
            f"view/next?after_us={nonsense}",
            f"view/changes?from_us=0&until_us={nonsense}",
            f"view/request-traces?at_us=0&limit={nonsense}",
        ):
            status, answer = await ask(path)
            assert status == 400 and "whole number" in answer["error"], path
        assert (await ask("view/state"))[0] == 400
        assert (await ask("view/changes?from_us=2&until_us=1"))[0] == 400

    served(run, ask_all)


def test_another_name_for_this_machine_is_refused(run: TracedRun) -> None:
    async def ask_all(ask: Ask) -> None:
        assert (await ask("view/about"))[0] == 403

    served(run, ask_all, Host="evil.example")


def test_token_is_required_beyond_this_machine(run: TracedRun) -> None:
    server = ReplayServer(run, "0.0.0.0")
    assert server.token and server.url.endswith(f"#token={server.token}")
    assert ReplayServer(run).token is None


def test_occupied_port_is_reported(run: TracedRun) -> None:
    async def serve_twice() -> None:
        first = ReplayServer(run)
        await first.start()
        try:
            with pytest.raises(ViewError, match="the port is taken; port 0 takes a free one"):
                await ReplayServer(run, port=first.port).start()
        finally:
            await first.stop()

    asyncio.run(serve_twice())


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("203.0.113.1", "203.0.113.1:0: it is no address of this machine"),
        ("no.such.host.invalid", "no.such.host.invalid:0: "),
        ("a" * 80, "that is no name of a machine"),
    ],
)
def test_unusable_address_is_reported(run: TracedRun, host: str, message: str) -> None:
    with pytest.raises(ViewError, match=message):
        asyncio.run(ReplayServer(run, host).start())
    with pytest.raises(ViewError, match=message):
        check_address(host, 0)


def test_simulation_is_not_run_if_the_port_of_its_view_is_occupied(
    run_command: RunCommand,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ["--view", "--no-open", "--view-port", port]
        ran = run_command("simulate", "slow-follower", *options)
    assert ran.status == 2 and ran.out == ""
    assert ran.err.count("\n") == 1 and "the port is taken" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "wait_s",
    [0.0, 0.5, *(pytest.param(wait_s, marks=pytest.mark.exhaustive) for wait_s in (0.2, 1.0, 2.0))],
)
def test_ctrl_c_ends_the_command_cleanly(folder: Path, wait_s: float) -> None:
    """Also while the audit computes, which is when it is pressed most."""
    command = [sys.executable, "-m", "purgatory", "view", str(folder), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b"http://127.0.0.1:" in process.stdout.readline()
        time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_folder_without_a_trace_ends_the_command_with_one_line(
    run_command: RunCommand, tmp_path: Path
) -> None:
    ended = run_command("view", str(tmp_path), "--no-open")
    assert ended.status == 2 and ended.out == ""
    assert ended.err.count("\n") == 1 and "is no trace" in ended.err


@pytest.mark.slow
def test_temporary_trace_of_a_viewed_simulation_is_removed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "purgatory", "simulate", "steady", "--duration", "500ms"]
    with subprocess.Popen(
        [*command, "--view", "--no-open", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://127.0.0.1:" in line:
                break
        assert list(tmp_path.glob("purgatory-view-*/trace/run.json"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert not list(tmp_path.glob("purgatory-view-*"))
