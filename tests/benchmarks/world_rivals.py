"""The time to find a bug in a world, beside simloom and simloop, and its size after shrinking.

    python -m tests.benchmarks.world_rivals

Small programs of asyncio, each with one bug that needs another order of its tasks. Each tool
searches each program ten times, from other seeds on, with its own default; then it shrinks what it
found. The figures are medians: runs and processor time until the bug showed, and in how
many choices the order that is left differs from first in, first out.

Programs with Kafka follow, which no rival runs. Of these the size is the number of faults that are
left.

The rivals need Python 3.12 or later. All tools run on the Python of ``RIVALS``, by default
``build/rivals``, a virtual environment with ``simloom==0.5.0 simloop==0.2.2`` and the world's
requirements, ``structlog prometheus-client pytest``; its core is in pure Python there. Without it
the world alone is measured.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from tests.benchmarks.measurement import Figure, Size, run_alone, say
from tests.benchmarks.world_kafka_programs import KAFKA_PROGRAMS, search
from tests.benchmarks.world_programs import PROGRAMS, Found

ROOT = Path(__file__).parents[2]
RIVALS = Path(os.environ.get("RIVALS", ROOT / "build" / "rivals")) / "bin" / "python"


def measure(size: Size = Size.USUAL) -> list[Figure]:
    times, count = size.pick(1, 10), size.pick(2, len(PROGRAMS))
    compares = RIVALS.exists() and size is not Size.SMALL
    tools = ["world", "simloom", "simloop"] if compares else ["world"]
    if not compares:
        say(f"no rivals in {RIVALS}: the world alone is measured")
    found = {tool: _search(tool, times, count, compares) for tool in tools}
    first = {"runs": 0, "time": 0, "size": 0}
    for program in found["world"]:
        lines = [f"{tool} {_text(found[tool][program], 'choices')}" for tool in tools]
        say(f"{program}: {'; '.join(lines)}")
        for place, name in enumerate(first):
            values = [_medians(found[tool][program])[place] for tool in tools]
            first[name] += values[0] <= min(values)
    return [
        Figure(
            f"programs in which the world is first in {what}",
            100 * first[name] / count,
            "%",
            goal,
            "higher",
        )
        for name, what, goal in (
            ("runs", "runs until the bug showed", 75),
            ("time", "the processor's time until then", 75),
            ("size", "how few choices are left", 75),
        )
    ] + [_measure_kafka(times, size.pick(1, len(KAFKA_PROGRAMS)))]


def _measure_kafka(times: int, count: int) -> Figure:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what faults make it say
    runs = []
    for program in KAFKA_PROGRAMS[:count]:
        found = [search(program, 10_000 * number) for number in range(times)]
        say(f"{program.name}: {_text(found, 'faults')}")
        runs.append(_medians(found)[0])
    return Figure("runs until the bug of a program with Kafka showed, the most", max(runs), "runs")


def _text(found: list[Found], what: str) -> str:
    runs, processor_s, left = _medians(found)
    return f"{runs:g} runs, {1_000 * processor_s:.1f} ms, {left:g} {what}"


def _medians(found: list[Found]) -> tuple[float, float, float]:
    shrunk = [one.size for one in found if one.size is not None]
    return (
        median(one.runs for one in found),
        median(one.processor_s for one in found),
        median(shrunk) if shrunk else float("inf"),
    )


def _search(tool: str, times: int, count: int, on_rivals: bool) -> dict[str, list[Found]]:
    """Search the first programs with one tool, in a process of its own."""
    done = subprocess.run(
        [
            str(RIVALS) if on_rivals else sys.executable,
            str(Path(__file__).with_name("world_programs.py")),
            *(tool, str(times), str(count)),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["program"]: [Found(*one) for one in line["found"]] for line in lines}


if __name__ == "__main__":
    run_alone(measure)
