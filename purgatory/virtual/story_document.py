"""The story of a run as a document, for the view: see `docs/view.md`.

The document has the steps that the text of a story may have, and those that sent or received a
message. All times are microseconds since the world began, and all references to steps are indexes
of its list of steps; a step that is left out is represented by the last one before it.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from purgatory.virtual.history import Event, frames_of
from purgatory.virtual.network import partition_nodes
from purgatory.virtual.story import (
    FAULTS,
    Message,
    Place,
    Step,
    Story,
    has_events,
    past_of,
    source_line,
)

if TYPE_CHECKING:
    from purgatory.cluster.protocol.wire import Request
    from purgatory.trace.observer import FaultState

FORMAT: Final = "purgatory story"
VERSION: Final = 1

_MAX_STEPS: Final = 5_000
_MAX_RECORDS: Final = 20
_MAX_TEXT: Final = 80
_CLIENT: Final = "client"
_DEATHS: Final = ("crash", "failed")
_DOWN, _PAUSE, _PARTITION, _FAULT = "down", "pause", "partition", "fault"
_BAND_TEXTS: Final = {
    _DOWN: "{} is down",
    _PAUSE: "{} is paused",
    _PARTITION: "partition {}",
}


def story_document(
    story: Story,
    faults: Iterable[FaultState] = (),
    topic_name: Callable[[Any], str | None] = lambda topic_id: None,
    **head: str,
) -> dict[str, Any]:
    """Return a story as a JSON object.

    Args:
        faults: the clusters' faults, which are no steps.
        topic_name: returns the name of a topic by its id.
        head: texts for the top of the page: ``title``, ``failure``, ``command``, ``report``.
    """
    return _Document(story, topic_name).build(faults, head)


class _Document:
    """Makes the document of one story."""

    def __init__(self, story: Story, topic_name: Callable[[Any], str | None]) -> None:
        self._story = story
        self._topic_name = topic_name
        self._kept = kept = story.steps()
        self._past = past_of(kept, story.count)
        talking = {number for one in story.messages for number in (one.sent, one.ended) if number}
        shown = [
            step
            for step in kept.values()
            if step.place or step.number in talking or has_events(step, FAULTS)
        ]
        # The last ones, and those around faults, from which a page tells what came of them.
        around = story.around_faults()
        early = [step for step in shown[:-_MAX_STEPS] if step.number in around][-_MAX_STEPS // 2 :]
        self._steps = early + shown[max(0, len(shown) - _MAX_STEPS + len(early)) :]
        self._numbers = [step.number for step in self._steps]

    def build(self, faults: Iterable[FaultState], head: Mapping[str, str]) -> dict[str, Any]:
        messages = list(self._messages())
        waits = list(self._waits())
        bands = [*self._bands(), *self._cluster_bands(faults)]
        steps = [self._step(step) for step in self._steps]
        return {
            "format": FORMAT,
            "version": VERSION,
            **head,
            "total_steps": self._story.count,
            "begins_at": self._last_fault(),
            "steps": steps,
            "messages": messages,
            "waits": waits,
            "bands": bands,
            "nodes": self._node_names(steps, messages, waits, bands),
        }

    def _last_fault(self) -> int | None:
        """The index of the step of the last fault, at which a page opens; None: there is none."""
        indices = [self._index(number) for number, _ in self._story.faults]
        return next((index for index in reversed(indices) if index >= 0), None)

    def _index(self, number: int) -> int:
        """The index of a step, or of the last one before it; -1: there is none."""
        return bisect_right(self._numbers, number) - 1

    def _index_at(self, at_us: int) -> int:
        """The index of the first step at a time or later."""
        return bisect_left(self._steps, at_us, key=lambda step: step.at_us)

    def _step(self, step: Step) -> dict[str, Any]:
        own = step.place is not None
        cause = step.cause
        kept = self._kept
        while cause is not None and cause in kept and self._numbers[self._index(cause)] != cause:
            cause = kept[cause].cause  # past steps of libraries alone
        index = -1 if cause is None else self._index(cause)
        matters = own or has_events(step, FAULTS) or step.number in self._past
        return {
            "number": step.number,
            "at_us": step.at_us,
            "node": step.node,
            "name": step.name,
            "place": _place(step.place),
            "cause": None if index < 0 or self._numbers[index] != cause else index,
            "matters": matters,
            "fault": has_events(step, FAULTS),
            "notes": [
                f"{event.kind}: {event.text}"
                for event in step.events
                if event.kind in (*FAULTS, "schedule", "refused", "gave up")
            ],
        }

    # Messages.

    def _messages(self) -> Iterator[dict[str, Any]]:
        frames = _KafkaFrames(self._topic_name)
        for message in self._story.messages:
            described = frames.describe(message) if message.kind == "data" else []
            sent = self._index(message.sent)
            ended = None if message.ended is None else self._index(message.ended)
            if ended is not None and ended < 0:
                continue
            yield {
                "source": message.source,
                "target": message.target,
                "connection": message.connection,
                "sent": sent,
                "ended": ended,
                "outcome": message.outcome,
                "matters": message.ended in self._past,
                "text": _message_text(message, described),
                "frames": described,
            }

    # Waits.

    def _waits(self) -> Iterator[dict[str, Any]]:
        """The waits of the program's tasks, each from one step of a task to its next one."""
        deaths = self._deaths()
        kept = self._kept
        for step in self._steps:
            begin = step.before or step.cause
            if not (step.is_task and step.place and begin):
                continue
            yield from self._wait(step.node, step.name, step.place, begin, step.number, deaths)
        for last, name, place in self._story.waits():
            if place is not None and not kept[last.number].is_last:
                yield from self._wait(last.node, name, place, last.number, None, deaths)

    def _wait(
        self,
        node: str,
        name: str,
        place: Place,
        begin: int,
        end: int | None,
        deaths: Mapping[str, Sequence[int]],
    ) -> Iterator[dict[str, Any]]:
        dead = [number for number in deaths.get(node, ()) if number >= begin]
        if dead and (end is None or dead[0] < end):
            end = dead[0]
        last = None if end is None else self._index(end)
        if last is None or last >= 0:
            yield {
                "node": node,
                "name": name,
                "place": _place(place),
                "from": self._index(begin),
                "until": last,
            }

    def _deaths(self) -> Mapping[str, Sequence[int]]:
        """The steps at which the processes of hosts died."""
        deaths: dict[str, list[int]] = {}
        for number, event in self._story.faults:
            node, change = _host_event(event)
            if change in _DEATHS:
                deaths.setdefault(node, []).append(number)
        return deaths

    # Lasting faults.

    def _bands(self) -> Iterator[dict[str, Any]]:
        """The lasting faults: hosts that are down or paused, and partitions."""
        lasting: dict[tuple[str, str], dict[str, Any]] = {}
        for number, event in self._story.faults:
            index = max(0, self._index(number))
            begun, ended = _bands_of(event)
            for key in ended:
                if key in lasting:
                    lasting.pop(key)["until"] = index
            if begun is not None:
                kind, text = begun
                nodes = partition_nodes(text) if kind == _PARTITION else [text]
                lasting[begun] = _band(nodes, kind, _BAND_TEXTS[kind].format(text), index)
                yield lasting[begun]

    def _cluster_bands(self, faults: Iterable[FaultState]) -> Iterator[dict[str, Any]]:
        for fault in faults:
            begin = self._index_at(fault.since_us)
            if begin < len(self._steps):
                band = _band(
                    [f"broker {number}" for number in fault.brokers], _FAULT, fault.text, begin
                )
                if fault.until_us is not None:
                    end = self._index_at(fault.until_us)
                    band["until"] = None if end == len(self._steps) else end
                yield band

    def _node_names(self, *parts: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """All nodes: the client, hosts, and brokers by their numbers."""
        found: dict[str, None] = {}
        for part in parts:
            for one in part:
                names = one.get("nodes") or [one.get(key) for key in ("node", "source", "target")]
                found.update(dict.fromkeys(name for name in names if name))
        return sorted(found, key=_node_order)


def _node_order(node: str) -> tuple[int, int]:
    word, _, number = node.partition(" ")
    if word == "broker" and number.isdecimal():
        return 2, int(number)
    return int(node != _CLIENT), 0


def _band(nodes: Sequence[str], kind: str, text: str, begin: int) -> dict[str, Any]:
    return {"nodes": list(nodes), "kind": kind, "text": text, "from": begin, "until": None}


def _bands_of(event: Event) -> tuple[tuple[str, str] | None, Sequence[tuple[str, str]]]:
    """The bands that begin and end with an event, each as a kind and its nodes."""
    if event.kind == "partition":
        return (_PARTITION, event.text), ()
    if event.kind == "heal":
        return None, [(_PARTITION, event.text)]
    node, change = _host_event(event)
    if change in _DEATHS:
        return (_DOWN, node), [(_PAUSE, node), (_DOWN, node)]
    if change == "pause":
        return (_PAUSE, node), ()
    return None, {"restart": [(_DOWN, node)], "resume": [(_PAUSE, node)]}.get(change, [])


def _host_event(event: Event) -> tuple[str, str]:
    """The node of a host's event, and its change; "" for other events."""
    node, _, change = event.text.rpartition(": ")
    return (node, change) if event.kind == "host" else ("", "")


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    line, source = source_line(*place)
    near = os.path.relpath(place[0])
    return {"file": place[0] if near.startswith("..") else near, "line": line, "source": source}


def _message_text(message: Message, frames: Sequence[Mapping[str, Any]]) -> str:
    if message.kind == "end":
        return "end of the stream"
    if message.kind == "reset":
        return "reset of the connection"
    size = f"{len(message.data):,} bytes"
    names = ", ".join(frame["name"] for frame in frames if frame["name"])
    return f"{names}, {size}" if names else f"{size}, encrypted" if message.is_encrypted else size


class _KafkaFrames:
    """Reads frames of Kafka's protocol, with the records in them; other bytes become a text."""

    def __init__(self, topic_name: Callable[[Any], str | None]) -> None:
        self._topic_name = topic_name
        self._requests: dict[tuple[str, int], Request] = {}

    def describe(self, message: Message) -> list[dict[str, Any]]:
        """Return the frames of a message, each with its name and its records."""
        if message.is_encrypted:
            return []
        try:
            found = [self._frame(message, frame) for frame in frames_of(message.data)]
        except ModuleNotFoundError:  # without the extra `cluster` no program speaks Kafka
            found = []
        known = [frame for frame in found if frame is not None]
        return known or [{"name": "", "records": [_shown(message.data)]}]

    def _frame(self, message: Message, frame: bytes) -> dict[str, Any] | None:
        from purgatory.cluster.api.registry import SUPPORTED
        from purgatory.cluster.errors import BadRequestError, UnsupportedVersionError
        from purgatory.cluster.protocol.wire import decode_request

        source, _, target = message.connection.partition(" > ")
        number = int.from_bytes(frame[:4], "big", signed=True)
        if request := self._requests.pop((f"{target} > {source}", number), None):
            return {"name": f"{_api(request)} response", "records": self._response(request, frame)}
        try:
            request = decode_request(frame, SUPPORTED)
        except (BadRequestError, UnsupportedVersionError):
            return None
        self._requests[message.connection, request.correlation_id] = request
        name = f"{_api(request)} v{request.api_version}"
        return {"name": name, "records": self._records(request.body)}

    def _response(self, request: Request, frame: bytes) -> list[str]:
        from kio.index import load_response_schema

        from purgatory.cluster.protocol.wire import API_VERSIONS, response_entity

        flexible = load_response_schema(request.api_key, request.api_version).__flexible__
        begin = 5 if flexible and request.api_key != API_VERSIONS else 4
        try:
            return self._records(response_entity(request, frame[begin:]))
        except Exception:  # the codec may raise anything for a frame that a fault has cut off
            return []

    def _records(self, body: Any) -> list[str]:
        """The records of a produce or a fetch, the offsets of a response, and errors."""
        topics = getattr(body, "topic_data", None) or getattr(body, "responses", None) or ()
        lines = (line for topic in topics for line in self._topic(topic))
        first = list(islice(lines, _MAX_RECORDS))
        return [*first, "..."] if len(first) == _MAX_RECORDS else first

    def _topic(self, topic: Any) -> Iterator[str]:
        from purgatory.cluster.records import read_records, whole_batches

        topic_id = getattr(topic, "topic_id", None)
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        name = name or self._topic_name(topic_id) or str(topic_id)
        for key in ("partition_data", "partition_responses", "partitions"):
            for one in getattr(topic, key, None) or ():
                number = getattr(one, "index", getattr(one, "partition_index", ""))
                if error := getattr(one, "error_code", 0):
                    yield f"{name}-{number}: {getattr(error, 'name', error)}"
                elif key == "partition_responses":
                    yield f"{name}-{number}: offset {one.base_offset}"
                for batch in whole_batches(getattr(one, "records", None) or b""):
                    offset = "" if key == "partition_data" else "@{}"
                    for record in read_records(batch):
                        at = offset.format(record.offset)
                        yield f"{name}-{number}{at}: {_shown(record.key)} = {_shown(record.value)}"


def _api(request: Request) -> str:
    return "".join(word.capitalize() for word in request.api_name.split("_"))


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = repr(data[: _MAX_TEXT + 1])[2:-1]
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
