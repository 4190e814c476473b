"""A client that runs a program at a cluster, real or ours, and records what it is answered.

Programs are coroutines of a `Recorder`. A step is one request and its renamed answer; its name says
the API, the version and what is special about it. Requests by which a program only waits are no
steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from tests.recorded.codec import CodecError, Message, read_response, request_bytes
from tests.recorded.renaming import Renamer

Program = Callable[["Recorder"], Coroutine[Any, Any, None]]

GROUP, TRANSACTION, SHARE = 0, 1, 2
"""The types of coordinators' keys."""

NO_ID = UUID(int=0)
CLIENT_ID = "judge"
_SETTLED_S = 0.3
_PATIENCE_S = 20.0
_BALANCED_S = 90.0
_RETRIED = {14, 15, 16, 51}
"""Errors of coordinators that are loading, moving or at work."""


class NoAnswerError(Exception):
    """A connection that was cut, a request that was not answered, or an unreadable response."""


class Leader(NamedTuple):
    """The leader of a partition."""

    topic: str
    partition: int = 0


class Coordinator(NamedTuple):
    """The coordinator of a group, a transactional id or a share partition."""

    key: str
    kind: int = GROUP


class Other(NamedTuple):
    """A broker that is not the one of this place."""

    than: Leader | Coordinator


Place = Leader | Coordinator | Other | int | None
"""The broker of a request: None is the first one. Brokers forward the controller's requests."""


class Answer(dict[str, Any]):
    """A response's fields. A field that it doesn't have is None, so that programs go on."""

    def __missing__(self, key: str) -> None:
        return None


class Step(NamedTuple):
    """One recorded answer."""

    name: str
    answer: Any


class Connection:
    """A connection to one broker."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._client_id = client_id
        self._sent = 0
        self._received = 0

    @classmethod
    async def open(cls, host: str, port: int, client_id: str = CLIENT_ID) -> Connection:
        """Connect to a broker."""
        return cls(*await asyncio.open_connection(host, port), client_id)

    def send(self, api: str, version: int, body: Message, has_answer: bool = True) -> None:
        """Send a request; acks=0 is never answered."""
        self._sent += 1
        if not has_answer:
            self._received += 1
        self.send_frame(request_bytes(api, version, body, self._sent, self._client_id))

    def send_frame(self, frame: bytes) -> None:
        """Send bytes behind their length."""
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    async def receive(self, api: str, version: int, timeout_s: float = _PATIENCE_S) -> Answer:
        """Receive the next response.

        Raises:
            NoAnswerError: there is none.
        """
        try:
            async with asyncio.timeout(timeout_s):
                frame = await self.receive_frame()
            correlation, body = read_response(api, version, frame)
        except TimeoutError:
            raise NoAnswerError("no answer") from None
        except (OSError, asyncio.IncompleteReadError):
            raise NoAnswerError("closed") from None
        except (CodecError, UnicodeDecodeError) as error:
            raise NoAnswerError(f"unreadable: {error}") from None
        self._received += 1
        if correlation != self._received:
            raise NoAnswerError("answer to another request")
        return Answer(body)

    async def receive_frame(self) -> bytes:
        """Receive the bytes of a response behind its length."""
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(length)

    def close(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()


class Brokers(Protocol):
    """The means of programs to kill brokers and to bring them back."""

    async def kill(self, broker_id: int) -> object:
        """Kill a broker."""

    async def revive(self, broker_id: int) -> object:
        """Start it again."""


class Pace:
    """The seconds from a run's start to its steps, by their numbers, and to the deaths and returns
    of brokers, by numbers below 0.

    A run that is given those of another keeps to them: a real cluster is slower than one in virtual
    time, and timers end between the steps.

    Args:
        kept_s: those of another run.
    """

    def __init__(self, kept_s: Mapping[int, float] | None = None) -> None:
        self.noted_s: dict[int, float] = {}
        self._kept_s = kept_s or {}
        self._started_s: float | None = None

    async def begin(self, step: int) -> None:
        """Wait until a step's time, if it has one, and note when it begins."""
        await self.wait(step)
        self.note(step)

    async def wait(self, number: int) -> None:
        """Wait until the time of a step or a death, if it has one."""
        now = asyncio.get_running_loop().time
        if self._started_s is None:
            self._started_s = now()
        early_s = self._started_s + self._kept_s.get(number, 0.0) - now()
        if early_s > 0:
            await asyncio.sleep(early_s)

    def note(self, number: int) -> None:
        """Note the time of a step or a death as now."""
        assert self._started_s is not None, "each was waited for"
        self.noted_s[number] = asyncio.get_running_loop().time() - self._started_s


class Recorder:
    """Runs a program.

    Args:
        host: where a broker listens.
        port: its port.
        run: the name of the run, of seven characters, which ends the names of topics and groups.
        brokers: kills brokers, where programs do.
        pace: of its steps.
    """

    def __init__(
        self,
        host: str,
        port: int,
        run: str,
        brokers: Brokers | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.run = run
        self.renamed = Renamer(run)
        self.steps: list[Step] = []
        self.addresses: dict[int, tuple[str, int]] = {}
        self._bootstrap = host, port
        self._brokers = brokers
        self._pace = pace or Pace()
        self._dead: set[int] = set()
        self._deaths = 0
        self._connections: dict[tuple[int, str], Connection] = {}
        self._places: dict[tuple[str, Leader | Coordinator], int] = {}
        self._coordinators: set[Coordinator] = set()

    async def start(self) -> None:
        """Ask for the brokers."""
        await self._pace.begin(0)
        connection = await Connection.open(*self._bootstrap)
        connection.send("Metadata", 12, {"Topics": []})
        answer = await connection.receive("Metadata", 12)
        connection.close()
        self.addresses = {one["NodeId"]: (one["Host"], one["Port"]) for one in answer["Brokers"]}

    def close(self) -> None:
        """Cut all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Requests.

    async def ask(
        self,
        api: str,
        version: int,
        name: str,
        body: Message | None = None,
        to: Place = None,
        client_id: str = CLIENT_ID,
        timeout_s: float = _PATIENCE_S,
    ) -> Answer:
        """Send a request, record the answer as a step, and return it; empty: there is none."""
        await self._pace.begin(len(self.steps))
        try:
            answer = await self.ask_quietly(api, version, body, to, client_id, timeout_s)
        except NoAnswerError as error:
            self.note(f"{api} v{version} {name}", str(error))
            return Answer()
        self.note(f"{api} v{version} {name}", answer)
        return answer

    def note(self, name: str, answer: Any) -> None:
        """Record an answer."""
        known = {step.name for step in self.steps}
        numbered, number = name, 1
        while numbered in known:
            number += 1
            numbered = f"{name} #{number}"
        self.steps.append(Step(numbered.replace(self.run, "<run>"), self.renamed(answer)))

    async def ask_quietly(
        self,
        api: str,
        version: int,
        body: Message | None = None,
        to: Place = None,
        client_id: str = CLIENT_ID,
        timeout_s: float = _PATIENCE_S,
    ) -> Answer:
        """Send a request, and return its answer, which is not recorded.

        Raises:
            NoAnswerError: there is none.
        """
        broker = await self.broker(to)
        connection = await self.connection(broker, client_id)
        try:
            connection.send(api, version, body or {})
            return await connection.receive(api, version, timeout_s)
        except (NoAnswerError, asyncio.CancelledError):
            self._connections.pop((broker, client_id), None)
            connection.close()
            raise

    async def connection(self, broker: int, client_id: str = CLIENT_ID) -> Connection:
        """Return the connection of a client id to a broker; there is one."""
        connection = self._connections.get((broker, client_id))
        if connection is None:
            connection = await Connection.open(*self.addresses[broker], client_id)
            self._connections[broker, client_id] = connection
        return connection

    # Places.

    async def broker(self, place: Place) -> int:
        """Return the broker of a place."""
        if place is None:
            return self._first()
        if isinstance(place, int):
            return place
        if isinstance(place, Other):
            known = await self.broker(place.than)
            return self._first(known)
        key = type(place).__name__, place  # equal tuples of two kinds are two places
        if key not in self._places:
            find = self._leader if isinstance(place, Leader) else self._coordinator
            self._places[key] = await self._until(lambda: find(place))  # type: ignore[arg-type]
        return self._places[key]

    async def _until(self, find: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
        """Ask until there is a leader or a coordinator; else go on with the first broker."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    found = await find()
                    if found is not None:
                        return found
                    await asyncio.sleep(0.1)
        return self._first()

    def _first(self, but: int = -1) -> int:
        return min(one for one in self._living() if one != but)

    async def _leader(self, place: Leader) -> int | None:
        for topic in await self._described(place.topic):
            for partition in topic["Partitions"]:
                is_there = partition["ErrorCode"] == 0
                if is_there and partition["PartitionIndex"] == place.partition:
                    return int(partition["LeaderId"])
        return None

    async def _coordinator(self, place: Coordinator) -> int | None:
        self._coordinators.add(place)
        body = {"KeyType": place.kind, "CoordinatorKeys": [place.key]}
        found = (await self.ask_quietly("FindCoordinator", 4, body))["Coordinators"][0]
        return None if found["ErrorCode"] else int(found["NodeId"])

    async def _described(self, topic: str, to: Place = None) -> Sequence[Mapping[str, Any]]:
        body = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False}
        answer = await self.ask_quietly("Metadata", 12, body, to)
        return answer["Topics"]  # type: ignore[no-any-return]

    # Deaths.

    async def kill(self, broker: int) -> None:
        """Kill a broker. Leaders and coordinators are asked for anew from then on."""
        assert self._brokers is not None
        await self._in_its_time(self._brokers.kill(broker))
        self._dead.add(broker)
        self._places.clear()
        for key in [key for key in self._connections if key[0] == broker]:
            self._connections.pop(key).close()

    async def revive(self, broker: int) -> None:
        """Start a dead broker again."""
        assert self._brokers is not None
        await self._in_its_time(self._brokers.revive(broker))
        self._dead.remove(broker)
        self._places.clear()

    async def _in_its_time(self, change: Awaitable[object]) -> None:
        """Await a change when it was complete in the run whose pace this one keeps: the sessions of
        members begin anew at a broker that takes over, and a real one takes its time."""
        self._deaths += 1
        await self._pace.wait(-self._deaths)
        await change
        self._pace.note(-self._deaths)

    async def until_balanced(self) -> None:
        """Wait until living brokers lead, each partition by the first that lives of its replicas.

        All brokers know it then, all that live are in sync, and the coordinators that the program
        has asked have loaded what they coordinate.
        """
        async with asyncio.timeout(_BALANCED_S):
            while not all([await self._is_balanced(broker) for broker in self._living()]):
                await asyncio.sleep(0.2)
                body = {"ElectionType": 0, "TopicPartitions": None, "TimeoutMs": 5_000}
                await self.ask_quietly("ElectLeaders", 2, body)
        self._places.clear()
        for place in sorted(self._coordinators):
            await self._until_loaded(place)
        await asyncio.sleep(_SETTLED_S)

    async def _is_balanced(self, broker: int) -> bool:
        body = {"Topics": None, "AllowAutoTopicCreation": False}
        answer = await self.ask_quietly("Metadata", 12, body, broker)
        if {one["NodeId"] for one in answer["Brokers"]} != set(self._living()):
            return False
        for topic in answer["Topics"]:
            for one in topic["Partitions"]:
                living = [node for node in one["ReplicaNodes"] if node not in self._dead]
                in_sync = sorted(one["IsrNodes"]) == sorted(living)
                if living and not (in_sync and one["LeaderId"] == living[0]):
                    return False
        return True

    async def _until_loaded(self, place: Coordinator) -> None:
        api, version, body = {
            GROUP: ("DescribeGroups", 5, {"Groups": [place.key]}),
            TRANSACTION: ("DescribeTransactions", 0, {"TransactionalIds": [place.key]}),
        }[place.kind]
        async with asyncio.timeout(_BALANCED_S):
            while True:
                answer = await self.ask_quietly(api, version, body, place)
                told = [*(answer["Groups"] or ()), *(answer["TransactionStates"] or ())]
                if told[0]["ErrorCode"] not in _RETRIED:
                    break
                self._places.clear()
                await asyncio.sleep(0.2)

    def _living(self) -> Sequence[int]:
        return [one for one in self.addresses if one not in self._dead]

    # Steps of many programs.

    def name(self, start: str) -> str:
        """Return a name of this run's own."""
        return f"{start}-{self.run}"

    async def topic(
        self,
        start: str,
        partitions: int = 1,
        replicas: int = 1,
        configs: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] = (),
    ) -> str:
        """Create a topic, wait until its leaders serve it, and return its name.

        Without an assignment broker 1 leads all partitions.
        """
        name = self.name(start)
        settings = [{"Name": key, "Value": value} for key, value in (configs or {}).items()]
        placed = assignment or [range(1, replicas + 1)] * partitions
        topic = {
            "Name": name,
            "NumPartitions": -1,
            "ReplicationFactor": -1,
            "Configs": settings,
            "Assignments": [
                {"PartitionIndex": partition, "BrokerIds": list(brokers)}
                for partition, brokers in enumerate(placed)
            ],
        }
        await self.ask_quietly("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 20_000})
        for broker in self._living():
            await self._until_there(name, broker)
        leaders = [next(one for one in brokers if one in self._living()) for brokers in placed]
        for leader in dict.fromkeys(leaders):
            led = [index for index, one in enumerate(leaders) if one == leader]
            await self._until_led(name, leader, led)
        await asyncio.sleep(_SETTLED_S)
        return name

    async def _until_there(self, topic: str, broker: int) -> None:
        while any(
            one["ErrorCode"]
            for found in await self._described(topic, broker)
            for one in (found, *found["Partitions"])
        ):
            await asyncio.sleep(0.05)

    async def _until_led(self, topic: str, leader: int, partitions: Sequence[int]) -> None:
        asked = [{"PartitionIndex": index, "Timestamp": -1} for index in partitions]
        body = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]}
        while any(
            one["ErrorCode"]
            for found in (await self.ask_quietly("ListOffsets", 5, body, leader))["Topics"]
            for one in found["Partitions"]
        ):
            await asyncio.sleep(0.05)

    async def topic_id(self, name: str) -> UUID:
        """Return a topic's id."""
        (topic,) = await self._described(name)
        return topic["TopicId"]  # type: ignore[no-any-return]

    async def ended(self, transactional_id: str) -> None:
        """Wait until the markers of a transaction are written."""
        place = Coordinator(transactional_id, TRANSACTION)
        body = {"TransactionalIds": [transactional_id]}
        for _ in range(60):
            answer = await self.ask_quietly("DescribeTransactions", 0, body, place)
            if not answer["TransactionStates"][0]["TransactionState"].startswith("Prepare"):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(_SETTLED_S)

    async def settled(self, api: str, version: int, name: str, body: Message, to: Place) -> Answer:
        """Ask until the coordinator is ready, and record the last answer."""
        await self._pace.begin(len(self.steps))
        for _ in range(60):
            answer = await self.ask_quietly(api, version, body, to)
            if answer["ErrorCode"] not in _RETRIED:
                break
            await asyncio.sleep(0.1)
        self.note(f"{api} v{version} {name}", answer)
        return answer


async def run_program(
    program: Program,
    host: str,
    port: int,
    run: str,
    brokers: Brokers | None = None,
    pace: Pace | None = None,
) -> list[Step]:
    """Run a program at a cluster, and return its steps; an exception is its last step."""
    recorder = Recorder(host, port, run, brokers, pace)
    try:
        await recorder.start()
        await program(recorder)
    except (LookupError, TypeError, ValueError, OSError, NoAnswerError) as error:
        recorder.note("end of the program", f"{type(error).__name__}: {error}")
    finally:
        recorder.close()
    return recorder.steps


async def warm_up(host: str, port: int) -> None:
    """Wait until the coordinators' topics are there, which are made at the first need."""
    recorder = Recorder(host, port, "warm-up")
    await recorder.start()
    for kind in (GROUP, TRANSACTION):
        await recorder.broker(Coordinator("warm-up", kind))
    await asyncio.sleep(2)
    recorder.close()
