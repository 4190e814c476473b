"""Small sweeps: a base scenario of a fifth of a second, and files that vary it."""

from __future__ import annotations

from pathlib import Path

from purgatory.sweeps.plan import Plan, load_plan

BASE = """
name = "tiny"
seed = 9
duration_ms = 200
drain_ms = 1_000

[topic]
partitions = 1

[followers]
lag_ms = 5

[[producers]]
group = "orders"
rate = 100.0
timeout_ms = 400

[[producers]]
group = "click.stream"
rate = 50.0
acks = 1

[[consumers]]
group = "billing"
max_wait_ms = 20

[[faults]]
kind = "stall_follower"
broker = 2
at_ms = 50
duration_ms = 60
"""

GRID = """
name = "by-hand"
scenario = "tiny.toml"
repetitions = 2
{further}

[grid]
"producers[orders].timeout_ms" = [{timeouts}]
"followers.lag_ms" = [{lags}]
"""


def write_sweep(folder: Path, text: str, base: str = BASE) -> Path:
    """Write a sweep file and the base scenario beside it."""
    (folder / "tiny.toml").write_text(base)
    file = folder / "sweep.toml"
    file.write_text(text)
    return file


def grid_plan(
    folder: Path, *, timeouts: str = "10, 400", lags: str = "1, 5", further: str = ""
) -> Plan:
    """The plan of a sweep over timeouts and lags, with two seeds each."""
    text = GRID.format(timeouts=timeouts, lags=lags, further=further)
    return load_plan(write_sweep(folder, text))
