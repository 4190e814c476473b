"""Walks of a timing wheel over HTTP, for the page that teaches it.

    GET wheel/walk?tick=1s&size=3&delays=1s,2s,3s&start_ms=0

The answer has ``tick_ms``, ``wheel_size``, ``start_ms``, and in ``steps`` what ``wheel_walk.walk``
yields; nonsense is answered with 400 and {"error": ...}.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from aiohttp import web

from purgatory.settings.typed_duration import duration_between
from purgatory.view.wheel_walk import Step, walk

MOST_BUCKETS = 100
"""Of a level."""
MOST_TASKS = 50
MOST_DRAWN = 50_000
"""Buckets of all levels in all steps: some megabytes, made within a tenth of a second."""
_LONGEST = "1000h"
_LATEST_MS = 10**15


def walk_document(asked: Mapping[str, str]) -> bytes:
    """Return a walk as JSON. O(buckets of all steps), which are bounded.

    Args:
        asked: ``tick`` and ``delays`` with their units, ``size`` and ``start_ms`` as numbers; what
            is left out is that of the walk through seven tasks.

    Raises:
        ValueError: one of them is nonsense, or the walk would be too large; says what is right.
    """
    tick = _duration(asked, "tick", "1s", "1ms")
    size = _whole(asked, "size", "3", 2, MOST_BUCKETS)
    start_ms = _whole(asked, "start_ms", "0", 0, _LATEST_MS)
    delays = asked.get("delays", "1s,2s,3s,4s,5s,6s,7s").split(",")
    if len(delays) > MOST_TASKS:
        raise ValueError(f"delays: at most {MOST_TASKS} tasks are walked, not {len(delays)}")
    steps: list[Step] = []
    drawn = 0
    delays_ms = [_duration({"delays": one}, "delays", "", "0s") for one in delays]
    for step in walk(tick, size, start_ms, delays_ms):
        steps.append(step)
        drawn += len(step["state"]["levels"]) * size
        if drawn > MOST_DRAWN:
            raise ValueError(
                f"this walk is too long: in {len(steps)} steps it has {drawn} buckets, and at most "
                f"{MOST_DRAWN} are told; take fewer tasks, shorter delays or a longer tick"
            )
    document = {"tick_ms": tick, "wheel_size": size, "start_ms": start_ms, "steps": steps}
    return json.dumps(document).encode()


def _duration(asked: Mapping[str, str], name: str, default: str, least: str) -> int:
    try:
        return duration_between(asked.get(name, default), least, _LONGEST).whole_ms
    except ValueError as error:
        raise ValueError(f"{name}: {str(error)[:200]}") from None


def _whole(asked: Mapping[str, str], name: str, default: str, least: int, most: int) -> int:
    text = asked.get(name, default)
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
    if not least <= number <= most:
        raise ValueError(f"{name}: {text[:50]!r} is no whole number from {least} to {most}")
    return number


async def answer_walk(request: web.Request) -> web.Response:
    """Answer with a walk, which another thread takes meanwhile."""
    try:
        body = await asyncio.to_thread(walk_document, request.query)
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    return web.Response(body=body, content_type="application/json")


def add_wheel_walks(app: web.Application) -> None:
    """Have ``app`` serve walks of a wheel."""
    app.add_routes([web.get("/wheel/walk", answer_walk)])
