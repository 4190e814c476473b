"""``purgatory wheel``: its output, for people and for machines."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from rich.console import Console

from purgatory.cli.wheel_command import duration, format_time, headline, render_step
from purgatory.view.wheel import walk
from tests.processes.cli.conftest import RunCommand

WALK_THROUGH = Path(__file__).parents[2] / "unit" / "timer" / "data" / "wheel-walkthrough.json"


def test_json_of_the_seven_task_walk(run_command: RunCommand) -> None:
    ran = run_command(
        *["wheel", "--tick", "1s", "--size", "3", "--start", "1675752020558ms"],
        *["--delays", "1s,2s,3s,4s,5s,6s,7000ms", "--json"],
    )
    assert ran.status == 0
    assert json.loads(ran.out) == json.loads(WALK_THROUGH.read_text())


def test_every_step_is_drawn_in_plain_text(run_command: RunCommand) -> None:
    ran = run_command("wheel", "--start", "1675752020558ms")
    assert ran.status == 0
    assert "\x1b" not in ran.out
    assert ran.out.count("delay queue:") == 15
    assert "level 2   tick 3 s   covers [-2.558 s, +6.442 s)" in ran.out
    assert (
        "advance to +442 ms: polled level 1 bucket 0, level 2 bucket 0, level 3 bucket 2; "
        "ran task 1; \ninserted again tasks 3, 7" in ran.out
    )
    assert ran.out.endswith("7 tasks ran in 7 advances of the clock\n")


def test_idle_buckets_of_a_large_wheel_are_folded(run_command: RunCommand) -> None:
    ran = run_command("wheel", "--size", "1000", "--tick", "1ms", "--delays", "500ms,501ms")
    for name in (" 1..499 ", " 500 ", " 501 ", " 502..999 "):
        assert name in ran.out
    assert len(ran.out.splitlines()) < 60


def test_many_tasks_of_a_bucket_are_counted(run_command: RunCommand) -> None:
    ran = run_command("wheel", "--delays", ",".join(["1.5s"] * 20))
    assert "ran tasks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8 more" in " ".join(ran.out.split())


def test_present_bucket_and_moved_tasks_stand_out_on_a_terminal() -> None:
    step = list(walk(1000, 3, 0, [4000]))[-2]
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system="standard")
    console.print(headline(step, 0))
    console.print(render_step(step, 0))
    assert step["event"] == "advance to 3000"
    assert "\x1b[" in out.getvalue()
    assert "> 0 <" in out.getvalue()
    assert "+4 s" in out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--size", "1"], "'--size': '1' is not a whole number from 2 to 1000"),
        (["--tick", "0ms"], "'--tick': '0ms' is too short; it must be at least 1ms"),
        (["--tick", "500us"], "'--tick': '500us' is too short"),
        (["--tick", "1.5ms"], "'--tick': '1.5ms' is no multiple of 1ms"),
        (["--tick", "soon"], "'--tick': 'soon' is not a duration"),
        (["--delays", "5s,x"], "'--delays': 'x' is not a duration"),
        (["--delays=-5s"], "'--delays': '-5s' is not a duration"),
        (["--delays", ""], "'--delays': '' is not a duration"),
        (["--delays", "5s,6"], "'--delays': '6' is not a duration; give a number and its unit"),
        (["--start", f"{2**60}ms"], f"'--start': '{2**60}ms' is too long"),
    ],
)
def test_invalid_value_is_named(
    run_command: RunCommand, arguments: list[str], expected: str
) -> None:
    ran = run_command("wheel", *arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.startswith(f"purgatory wheel: Invalid value for {expected}")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        (0, "0 s"),
        (1, "1 ms"),
        (-999, "-999 ms"),
        (1000, "1 s"),
        (-2558, "-2.558 s"),
        (1050, "1.05 s"),
        (3_600_000, "3,600 s"),
    ],
)
def test_durations_have_readable_units(ms: int, expected: str) -> None:
    assert duration(ms) == expected


def test_times_count_from_the_start() -> None:
    assert [format_time(ms, 5000) for ms in (5000, 6442, 2442)] == ["+0 s", "+1.442 s", "-2.558 s"]


def test_the_page_is_served_and_opened_until_ctrl_c() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "purgatory", "wheel", "--view"],
        stdout=subprocess.PIPE,
        env={**os.environ, "BROWSER": "echo opened %s"},
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            address = running.stdout.readline().split()[1]
            assert running.stdout.readline() == f"opened {address}\n"
            for path in ("/wheel.html", "/wheel/walk"):
                with urlopen(address.replace("/wheel.html", path)) as response:
                    assert response.status == 200
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


def test_page_is_served_at_the_requested_port_without_a_browser(
    run_command: RunCommand, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_command("wheel", "--view", "--view-port", str(port), "--no-open")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("purgatory wheel: ")
    assert str(port) in refused.err
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "purgatory",
            "wheel",
            "--view",
            "--no-open",
            "--view-port",
            str(port),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": f"touch {tmp_path / 'opened'}"},
    ) as running:
        assert running.stdout is not None
        try:
            address = running.stdout.readline().split()[1]
            assert address == f"http://127.0.0.1:{port}/wheel.html"
            with urlopen(address) as page:
                assert page.status == 200
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
    assert not (tmp_path / "opened").exists()
