"""A server of the view with a synthetic state: as many brokers, marks and changes as a test wants.

The server speaks the protocol of the real ones, serves the same page, and keeps its whole state, so
that a test can compare it with the drawing.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

from aiohttp import web

from purgatory.view.page_server import add_page
from tests.browser.view.own_loop import own_loop

Json: TypeAlias = dict[str, Any]

MARKUP = "<img src=x onerror=document.title='broken'>"
"""A topic's name that would run as markup."""

KINDS = [("Produce", "producer"), ("Fetch", "consumer"), ("Fetch", "follower"), ("Rebalance", "b")]
TICK_MS, SIZE, LEVELS = 1, 20, 3


def wheel(clock_ms: int) -> Json:
    """A wheel of three levels at that time."""
    return {"tick_ms": TICK_MS, "size": SIZE, "clock_ms": clock_ms, "start_ms": 0} | {
        "levels": levels(clock_ms)
    }


def levels(clock_ms: int) -> list[Json]:
    """Its levels, the finest first."""
    found = []
    for level in range(1, LEVELS + 1):
        tick_ms = TICK_MS * SIZE ** (level - 1)
        begin_ms = clock_ms - clock_ms % tick_ms
        covers_ms = [begin_ms, begin_ms + tick_ms * SIZE]
        found.append({"level": level, "tick_ms": tick_ms, "covers_ms": covers_ms})
    return found


def place(expires_ms: int, clock_ms: int) -> tuple[int, int]:
    """The level and the bucket of an expiration at that time."""
    for level in levels(clock_ms):
        if expires_ms < level["covers_ms"][1]:
            break
    return level["level"], expires_ms // level["tick_ms"] % SIZE


class MadeView:
    """The state, and what happens to it, step by step of a millisecond.

    Args:
        parked: how many operations wait at the start, and about how many later on.
        seed: of what happens.
    """

    def __init__(self, parked: int = 60, seed: int = 1, brokers: int = 3) -> None:
        self.random = random.Random(seed)
        self.now_ms = 4_000
        self.parked = parked
        self.next_id = 0
        self.operations: dict[int, list[Any]] = {}
        self.outcomes: dict[tuple[int, str], Json] = {}
        self.brokers = list(range(brokers))
        self.alive = dict.fromkeys(self.brokers, True)
        self.pressed: list[Json] = []
        self.faults: list[Json] = []
        self.ends = {"0": 42, "1": 42, "2": 36}
        self.high_watermark = 40
        for _ in range(parked):
            self.park()

    def park(self) -> Json:
        """Park one more."""
        purgatory, kind = self.random.choice(KINDS)
        broker = self.random.choice(self.brokers)
        expires_ms: int | None = self.now_ms + self.random.choice([30, 500, 1_500, 7_000])
        level: int | None = None
        bucket: int | None = None
        if self.next_id % 41 == 40:
            expires_ms = None
        else:
            assert expires_ms is not None
            level, bucket = place(expires_ms, self.now_ms)
        keys = ["orders-0"] if self.next_id % 7 else [f"{MARKUP}-0"]
        start_us = self.now_ms * 1000
        found = [self.next_id, broker, purgatory, kind, keys, start_us, expires_ms, level, bucket]
        self.operations[self.next_id] = found
        self.next_id += 1
        self.told(broker, purgatory)
        return {"at_us": start_us, "change": "parked", "operation": list(found)}

    def told(self, broker: int, purgatory: str) -> Json:
        """The outcomes that are counted for a purgatory."""
        none = dict.fromkeys(["immediate", "completed", "expired", "cancelled", "failed"], 0)
        return self.outcomes.setdefault((broker, purgatory), none)

    def complete(self, number: int, outcome: str) -> Json:
        """Take one off."""
        _, broker, purgatory, kind, keys, start_us, *_ = self.operations.pop(number)
        self.told(broker, purgatory)[outcome] += 1
        told = {"id": number, "broker": broker, "purgatory": purgatory, "kind": kind, "keys": keys}
        wait_us = self.now_ms * 1000 - start_us
        change = {"at_us": self.now_ms * 1000, "change": "completed", "outcome": outcome}
        return change | told | {"wait_us": wait_us}

    def step(self, ms: int = 1, completed: int = 1) -> list[Json]:
        """Let time go on, and return what changes."""
        self.now_ms += ms
        at_us = self.now_ms * 1000
        changes: list[Json] = []
        for broker in self.brokers:
            clock = {"clock_ms": self.now_ms, "levels": levels(self.now_ms)}
            changes.append({"at_us": at_us, "change": "clock", "broker": broker} | clock)
        for number, one in list(self.operations.items()):
            expires_ms = one[6]
            if expires_ms is None:
                continue
            if expires_ms <= self.now_ms:
                changes.append(self.complete(number, "expired"))
            elif one[7] > 1 and (moved := place(expires_ms, self.now_ms)) != (one[7], one[8]):
                one[7], one[8] = moved
                move = {"id": number, "level": moved[0], "bucket": moved[1]}
                changes.append({"at_us": at_us, "change": "moved"} | move)
        for number in self.random.sample(
            sorted(self.operations), min(completed, len(self.operations))
        ):
            changes.append(self.complete(number, "completed"))
        changes.extend(self.park() for _ in range(self.parked - len(self.operations)))
        changes.extend(self.append(at_us))
        return changes

    def append(self, at_us: int) -> list[Json]:
        """Let the leader's log grow, and the first follower's with it."""
        here = {"at_us": at_us, "topic": "orders", "partition": 0}
        self.ends["0"] += 1
        self.ends["1"] += 1
        self.high_watermark += 1
        ends = [
            {"change": "log_end", "broker": int(broker), "offset": self.ends[broker]}
            for broker in ("0", "1")
        ]
        watermark = {"change": "high_watermark", "offset": self.high_watermark}
        return [here | change for change in [*ends, watermark]]

    def pending(self, broker: int, purgatory: str) -> int:
        """The number of operations that wait there."""
        return sum(one[1] == broker and one[2] == purgatory for one in self.operations.values())

    def state(self) -> Json:
        """All of it, as on the wire."""
        return {
            "at_us": self.now_ms * 1000,
            "brokers": [self.broker(broker) for broker in self.brokers],
            "operations": [list(one) for one in self.operations.values()],
            "pending": len(self.operations),
            "shown": self.shown(),
            "topics": [self.topic("orders"), self.topic(MARKUP), self.topic("__offsets")],
            "groups": [
                {"name": MARKUP, "broker": 0, "state": "Stable", "generation": 3, "members": ["a"]}
            ],
            "transactions": [{"id": "t-1", "epoch": 0, "state": "begun", "since_us": 1}],
            "faults": [dict(one) for one in self.faults],
            "unknown": [],
        }

    def shown(self) -> int:
        """Of how many operations it tells."""
        return len(self.operations)

    def broker(self, broker: int) -> Json:
        """One broker, as on the wire."""
        purgatories = [
            {"name": name, "pending": self.pending(at, name), "outcomes": dict(outcomes)}
            for (at, name), outcomes in self.outcomes.items()
            if at == broker
        ]
        about = {"id": broker, "alive": self.alive[broker], "address": f"localhost:{9092 + broker}"}
        return about | {
            "connections": 3,
            "wheel": wheel(self.now_ms),
            "purgatories": purgatories,
        }

    def topic(self, name: str) -> Json:
        """One topic, as on the wire."""
        partition = {"partition": 0, "leader": 0, "leader_epoch": 1, "replicas": [0, 1, 2]}
        partition |= {"isr": [0, 1], "high_watermark": 40}
        partition |= {"log_end_offsets": {"0": 42, "1": 42, "2": 36}}
        if name == "orders":
            partition |= {"high_watermark": self.high_watermark}
            partition |= {"log_end_offsets": dict(self.ends)}
        return {"name": name, "internal": name.startswith("__"), "partitions": [partition]}


def request_trace(offset: int, at_us: int) -> Json:
    """A produce from its creation to its answer."""
    steps = [("created", None, 0), ("sent", None, 40), ("arrived", 0, 300), ("served", 0, 310)]
    steps += [("appended", 0, 350), ("copied", 1, 1_900), ("copied", 2, 2_400)]
    steps += [("committed", 0, 2_800), ("completed", 0, 2_801), ("answered", None, 3_100)]
    stages = [
        {"name": name, "broker": broker, "at_us": at_us + after} for name, broker, after in steps
    ]
    title = f"producer 3, record {offset} to {MARKUP if offset % 2 else 'orders'}-0"
    where = {"topic": "orders", "partition": 0, "offset": offset}
    return {"title": title, "outcome": "ok", "error": None, "stages": stages} | where


class MadeTrace(MadeView):
    """A run that is over: all its states and changes are known."""

    def __init__(self, parked: int = 60, moments: int = 400, ms: int = 5) -> None:
        super().__init__(parked)
        self.states = [self.state()]
        self.changes: list[list[Json]] = [[]]
        for _ in range(moments):
            self.changes.append(self.step(ms))
            self.states.append(self.state())
        self.begin_us: int = self.states[0]["at_us"]
        self.end_us: int = self.states[-1]["at_us"]
        self.apart_us = ms * 1000

    def index_at(self, at_us: int) -> int:
        """The last moment that is not after this one."""
        return int(at_us - self.begin_us) // self.apart_us

    def state_at(self, at_us: int) -> Json:
        """The state of that moment."""
        return self.states[self.index_at(at_us)] | {"at_us": at_us}

    def window(self, from_us: int, until_us: int, limit: int) -> Json:
        """The changes in (from, until], cut after a moment where they are too many."""
        found: list[Json] = []
        for changes in self.changes[self.index_at(from_us) + 1 : self.index_at(until_us) + 1]:
            found += changes
            if len(found) >= limit:
                until_us = found[-1]["at_us"]
                break
        return {"from_us": from_us, "until_us": until_us, "changes": found}


class Server:
    """The address of the view, and the requests that it got."""

    def __init__(self, view: MadeView, token: str | None = None) -> None:
        self.view = view
        self.token = token
        self.rate_per_s = 100
        self.address = ""
        self.drops = 0
        self.connections = 0
        self.has_request_traces = True

    @property
    def is_live(self) -> bool:
        """Whether changes come by themselves."""
        return not isinstance(self.view, MadeTrace)

    def app(self) -> web.Application:
        """All routes."""

        @web.middleware
        async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
            is_file = request.path == "/" or request.path.startswith(("/page/", "/wheel.html"))
            given = request.headers.get("Authorization")
            if self.token and not is_file and given != f"Bearer {self.token}":
                return web.json_response({"error": "a token is needed"}, status=401)
            answer: web.StreamResponse = await handler(request)
            return answer

        app = web.Application(middlewares=[guard])
        add_page(app)
        app.add_routes(
            [
                web.get("/view/about", self.about),
                web.get("/view/state", self.state),
                web.get("/view/live", self.live),
                web.get("/view/changes", self.changes),
                web.get("/view/next", self.next),
                web.get("/view/previous", self.previous),
                web.get("/view/bookmarks", self.bookmarks),
                web.get("/view/request-traces", self.request_traces),
                web.get("/view/request-trace", self.request_trace),
                web.get("/view/faults", self.faults),
                web.post("/faults", self.press),
                web.delete("/faults", self.heal),
                web.delete("/faults/{number}", self.heal),
                web.post("/brokers/{number}/revive", self.revive),
            ]
        )
        return app

    async def about(self, _: web.Request) -> web.Response:
        told: Json = {"name": f"made up {MARKUP}", "begin_us": 0, "end_us": None, "complete": True}
        told |= {"mode": "live", "may_change": True, "notes": []}
        if isinstance(self.view, MadeTrace):
            told |= {"mode": "trace", "begin_us": self.view.begin_us, "end_us": self.view.end_us}
            told |= {"may_change": False, "notes": ["This trace tells nothing of connections."]}
        return web.json_response(told)

    async def state(self, request: web.Request) -> web.Response:
        if isinstance(self.view, MadeTrace):
            return web.json_response(self.view.state_at(int(request.query["at_us"])))
        return web.json_response(self.view.state())

    async def live(self, request: web.Request) -> web.StreamResponse:
        self.connections += 1
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await self.event(answer, "state", self.view.state())
        drops = self.drops
        # A page that was closed is noticed by writing to it.
        while drops == self.drops and request.transport is not None:
            await asyncio.sleep(0.1)
            from_us = self.view.now_ms * 1000
            completed = max(1, self.rate_per_s // 20)
            changes = self.view.step(100, completed) if self.rate_per_s else []
            told = {"from_us": from_us, "until_us": self.view.now_ms * 1000, "changes": changes}
            told |= {"pending": len(self.view.operations), "shown": self.view.shown()}
            try:
                await self.event(answer, "changes", told)
            except ConnectionResetError:
                break
        return answer

    async def event(self, answer: web.StreamResponse, name: str, told: Json) -> None:
        await answer.write(f"event: {name}\ndata: {json.dumps(told)}\n\n".encode())

    async def changes(self, request: web.Request) -> web.Response:
        assert isinstance(self.view, MadeTrace)
        from_us, until_us = int(request.query["from_us"]), int(request.query["until_us"])
        return web.json_response(self.view.window(from_us, until_us, 500))

    async def next(self, request: web.Request) -> web.Response:
        assert isinstance(self.view, MadeTrace)
        at_us = self.view.begin_us + self.view.apart_us * (
            self.view.index_at(int(request.query["after_us"])) + 1
        )
        return web.json_response({"at_us": at_us if at_us <= self.view.end_us else None})

    async def previous(self, request: web.Request) -> web.Response:
        assert isinstance(self.view, MadeTrace)
        before = self.view.index_at(int(request.query["before_us"]) - 1)
        at_us = self.view.begin_us + self.view.apart_us * before
        return web.json_response({"at_us": at_us if before >= 0 else None})

    async def bookmarks(self, _: web.Request) -> web.Response:
        assert isinstance(self.view, MadeTrace)
        at_us = self.view.begin_us + 50 * self.view.apart_us
        text = f"a produce waited 1,500.99 ms on {MARKUP}-0"
        longest = {"name": "the longest wait", "at_us": at_us, "text": text, "operation": 1}
        anomaly = {"name": "the first anomaly", "at_us": None, "text": "", "operation": None}
        why = {"why_not": "the audit needs DuckDB"}
        return web.json_response({"bookmarks": [longest | {"why_not": None}, anomaly | why]})

    async def request_traces(self, request: web.Request) -> web.Response:
        if not self.has_request_traces:
            return web.json_response({"error": "nobody looked"}, status=404)
        at_us = int(request.query.get("at_us", self.view.now_ms * 1000))
        latest = [request_trace(n, at_us - 5_000) for n in (17, 16)]
        return web.json_response({"request_traces": latest})

    async def request_trace(self, request: web.Request) -> web.Response:
        if request.query["topic"] != "orders":
            return web.json_response({"error": "the topics are: orders"}, status=404)
        found = request_trace(int(request.query["offset"]), self.view.now_ms * 1000 - 500_000)
        return web.json_response(found)

    async def faults(self, _: web.Request) -> web.Response:
        ask = {"kind": "stall_follower", "broker": 2}
        return web.json_response({"faults": [{"text": "stall follower 2 for 10 s", "ask": ask}]})

    async def press(self, request: web.Request) -> web.Response:
        ask = await request.json()
        self.view.pressed.append(ask)
        fault = {"number": 1, "kind": ask["kind"], "text": f"stall {MARKUP}", "brokers": [2]}
        fault |= {"active": True, "since_us": self.view.now_ms * 1000, "until_us": None}
        self.view.faults.append(fault)
        self.view.alive[2] = False
        self.drops += 1
        return web.json_response({"number": 1}, status=201)

    async def heal(self, request: web.Request) -> web.Response:
        self.view.pressed.append({"heal": request.match_info.get("number")})
        self.view.faults.clear()
        self.drops += 1
        return web.json_response({})

    async def revive(self, request: web.Request) -> web.Response:
        self.view.pressed.append({"revive": request.match_info["number"]})
        self.view.alive[2] = True
        self.drops += 1
        return web.json_response({})


@contextmanager
def served(view: MadeView, token: str | None = None) -> Iterator[Server]:
    """Serve a view on a loop in a thread of its own."""
    server = Server(view, token)
    with running(server.app()) as address:
        server.address = address
        yield server


@contextmanager
def running(app: web.Application) -> Iterator[str]:
    """Run an application on a free port in a thread of its own; yields its address."""

    @asynccontextmanager
    async def listening() -> AsyncIterator[str]:
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
        await runner.cleanup()

    with own_loop(listening) as address:
        yield address
