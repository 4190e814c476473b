"""The base of all relays: sending, reconnecting, and knowing when they are deaf.

A message is a key and a number: the value of the key is at least that. Or a key alone: something
happened. No wait depends on a message; it only ends sooner by one. Hence a message that can't be
sent is dropped and counted, and numbers of one key that wait to be sent become one, the highest.

A key is sent with the name of its purgatory, so that those of other names don't hear it. Relays
take both for one text, here a *sent key*.

Ground rules
------------
* All of a relay runs on one event loop, `_loop`: that of the first purgatory that was attached,
  until the last one has left.
* `_watched` counts the purgatories that watch a sent key, and `_keys` tells whose it is. `_added`
  and `_removed` are the changes of which the session has yet to learn; `sync_subscriptions` passes
  them on, one call at a time.
* A relay is live from when all watched keys were read after its connection stood, until that ends.
  Keys are subscribed first, then read: a value that rises in between arrives as a message.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import random
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import quote

from purgatory.core.recent_errors import log_safely
from timer.locks import ScopedLock, module_lock
from timer.machine_time import time

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 5.0
MOST_UNSENT = 10_000
"""The keys with unsent numbers at which `send` begins to wait."""
LONGEST_KEY = 200
"""Bytes of UTF-8, with the purgatory's name; a longer key is sent as its hash."""


_relays: weakref.WeakSet[Relay] = weakref.WeakSet()
_relays_lock = module_lock()
"""Reentrant: a finalizer that runs while relays are listed may make one."""


def relays() -> list[Relay]:
    """Return the relays of this process that purgatories use. From any thread."""
    with _relays_lock:
        found = list(_relays)
    return [relay for relay in found if relay.state.name != "closed"]


def sent_key(name: str, key: str) -> str:
    """Return a purgatory's key as it is sent: a hash of it, if it is long.

    Different pairs have different texts: in a quoted name is no colon, nor the hashes' `#`.
    """
    sent = f"{_quoted(name)}:{key}"
    try:
        if len(sent.encode()) <= LONGEST_KEY:
            return sent
    except UnicodeEncodeError:
        pass  # half of a surrogate pair, which Redis could not be sent
    return f"#{hashlib.sha256(sent.encode(errors='surrogatepass')).hexdigest()}"


@lru_cache(maxsize=1_000)
def _quoted(name: str) -> str:
    return quote(name, safe="")


def fits_64_bits(number: int) -> bool:
    """Whether a store can hold a number, and each relay send it."""
    return -(1 << 63) <= number < 1 << 63


class RelayError(Exception):
    """A relay can't work as it was set up; the text says what would be right."""


class RelayState(NamedTuple):
    """Whether a relay hears what other processes send.

    Attributes:
        name: `live`; `deaf` while its connection is down, or its keys are being read again after
            that; `refused` if it could not begin, and trying again is of no use; `closed` while no
            purgatory uses it.
        since: when that began, in seconds of `time.time()`: a time to show, for that clock jumps.
        error: what ended the connection; None if live or closed.
    """

    name: Literal["closed", "deaf", "live", "refused"]
    since: float
    error: BaseException | None = None


class RelayCounts(NamedTuple):
    """The counts of a relay since it was made. Numbers that became one count once."""

    sent: int
    received: int
    lost: int
    """Messages that could not be sent."""
    reconnects: int
    deaf_s: float
    """Seconds without a connection, or before all keys had been read again."""


class _Publication(NamedTuple):
    """Numbers that are being sent, and the awaitable of that; None when sent, or the error."""

    numbers: Mapping[str, int | None]
    sending: Awaitable[object] | Exception | None


class Receiver(Protocol):
    """A purgatory, as a relay sees it."""

    @property
    def name(self) -> str:
        """Its name: it gets the messages of purgatories of the same name."""

    def receive(self, key: str, number: int | None) -> None:
        """Take a message, on the loop's thread."""

    async def read_all(self) -> None:
        """Read the values of all watched keys again."""


class Relay(ABC):
    """Carries messages between processes. Subclasses implement four methods.

    Several purgatories of a process may use one relay, which then has one connection.
    """

    def __init__(self) -> None:
        self._call_s = 5.0
        """The time that `publish` and `subscribe` may take."""
        self._receivers: list[Receiver] = []
        self._watched: Counter[str] = Counter()
        self._added: set[str] = set()
        self._removed: set[str] = set()
        self._keys: dict[str, tuple[str, str]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._claiming = ScopedLock()
        self._unsent: dict[str, int | None] = {}
        self._begun: _Publication | None = None
        self._begins_at_once = not inspect.iscoroutinefunction(self.publish)
        self._state = RelayState("closed", time.time())
        self._since_s = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._listening: asyncio.Future[None] | None = None
        self._closing: asyncio.Event | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._is_connected = False
        self._sent = self._received = self._lost = self._sessions = 0
        self._deaf_s = 0.0
        self.observers: dict[object, Callable[[str, float], object]] = {}
        """Each gets what is counted, and 1 or 0 for `deaf`; see `metrics.register_relay`."""
        with _relays_lock:
            _relays.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.name}>"

    # A subclass implements these.

    @abstractmethod
    async def listen(self) -> None:
        """Connect, subscribe to `keys()`, call `connected()`, and pass messages to `receive`.

        Returns or raises when the connection has ended, and is called again then.

        Raises:
            RelayError: trying again is of no use.
        """

    @abstractmethod
    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        """Subscribe to keys, and end other subscriptions, while connected; once it returns, no
        message of the added keys is missed. If all processes get all messages, it does nothing."""

    @abstractmethod
    def publish(self, numbers: Mapping[str, int | None]) -> Awaitable[object] | None:
        """Send a number, or None, for each key; an exception counts them as lost.

        A coroutine function; or a plain one, which begins at once, so that its message arrives
        sooner. The plain one returns a future of the end, or None if it has sent them.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release resources that outlive `listen`."""

    # A subclass calls these.

    def keys(self) -> list[str]:
        """Return the keys that are watched, in no order, as they are sent.

        For `listen`, which subscribes to them; `subscribe` gets the changes after this call.
        """
        self._added.clear()
        self._removed.clear()
        return list(self._watched)

    def connected(self) -> None:
        """Begin to read all watched keys again; the relay is live after that."""
        self._sessions += 1
        if self._sessions > 1:
            self._observe("reconnects", 1)
        self._is_connected = True
        self._catching_up = asyncio.create_task(self._catch_up())

    def receive(self, key: object, number: object) -> None:
        """Pass a message to the purgatories of its name; `key` as it was sent.

        Messages of an unknown form are ignored: others may write to a channel or a socket, too.
        """
        if not isinstance(key, str) or isinstance(number, bool):
            return
        if not (number is None or (isinstance(number, int) and fits_64_bits(number))):
            return
        self._received += 1
        self._observe("received", 1)
        if key in self._keys:
            name, key = self._keys[key]
            for receiver in self._receivers:
                if receiver.name == name:
                    receiver.receive(key, number)

    # Users read these.

    @property
    def state(self) -> RelayState:
        """Whether messages of other processes arrive, and since when."""
        return self._state

    @property
    def counts(self) -> RelayCounts:
        """Its counts since it was made."""
        deaf_s = self._deaf_s
        if self._state.name == "deaf":
            deaf_s += time.monotonic() - self._since_s
        reconnects = max(0, self._sessions - 1)
        return RelayCounts(self._sent, self._received, self._lost, reconnects, deaf_s)

    @property
    def watched_keys(self) -> int:
        """Keys with a wait in this process, those of each purgatory's name. O(1)."""
        return len(self._watched)

    # Purgatories call these.

    async def attach(self, receiver: Receiver) -> None:
        """Let a purgatory get messages; the first one starts the relay.

        Returns once the relay is connected, or has failed to connect for the first time.

        Raises:
            RelayError: it can't work as it was set up.
            RuntimeError: purgatories of another event loop use it.
        """
        self._claim()
        while self._closing is not None:
            await self._closing.wait()
            self._claim()
        self._receivers.append(receiver)
        if not self._tasks:
            self._subscribing = asyncio.Lock()
            self._sending = asyncio.Lock()
            self._to_send = asyncio.Event()
            self._has_room = asyncio.Event()
            self._has_room.set()
            self._attempted = asyncio.Event()
            self._set_state("deaf", None)
            self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._send_all())]
        try:
            await self._attempted.wait()
            if self._state.name == "refused" and self._state.error is not None:
                raise self._state.error.with_traceback(None)
        except BaseException:
            await self.detach(receiver)
            raise

    def _claim(self) -> None:
        """Take the relay for this event loop, from any thread."""
        loop = asyncio.get_running_loop()
        with self._claiming:
            if self._loop not in (None, loop):
                raise RuntimeError(
                    f"{self!r} is used by purgatories of another event loop: make a relay for each "
                    "loop, and for each ThreadedSharedPurgatory, which has one of its own"
                )
            self._loop = loop

    async def detach(self, receiver: Receiver) -> None:
        """Send a purgatory nothing more; the last one ends the relay."""
        self._receivers.remove(receiver)
        if self._receivers:
            return
        try:
            if self._state.name == "live":
                await self._send_rest()
        finally:
            # Unless meanwhile another one was attached, or has left as well.
            if not self._receivers and self._tasks:
                self._closing = asyncio.Event()
                try:
                    await self._end()
                finally:
                    closing, self._closing = self._closing, None
                    self._loop = None
                    closing.set()

    async def _end(self) -> None:
        tasks, self._tasks = self._tasks, []
        if self._catching_up is not None:
            tasks.append(self._catching_up)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._is_connected = False
        self._unsent.clear()
        if self._begun is not None and isinstance(self._begun.sending, asyncio.Future):
            self._begun.sending.cancel()
        self._begun = None
        self._has_room.set()  # nobody waits for a relay that is closed
        self._set_state("closed", None)
        await self.close()

    def watch(self, name: str, key: str) -> None:
        """Get messages of a purgatory's key after the next `sync_subscriptions`."""
        sent = sent_key(name, key)
        self._watched[sent] += 1
        if self._watched[sent] == 1:
            self._keys[sent] = (name, key)
            if sent in self._removed:
                self._removed.discard(sent)  # it is still subscribed
            else:
                self._added.add(sent)

    def unwatch(self, name: str, key: str) -> None:
        """Get none of them any more."""
        sent = sent_key(name, key)
        self._watched[sent] -= 1
        if not self._watched[sent]:
            del self._watched[sent], self._keys[sent]
            if sent in self._added:
                self._added.discard(sent)
            else:
                self._removed.add(sent)

    async def sync_subscriptions(self) -> None:
        """Subscribe to what was added, so that a read after it misses nothing."""
        async with self._subscribing:
            if not (self._added or self._removed) or not self._is_connected:
                return
            added, removed = self._added, self._removed
            self._added, self._removed = set(), set()
            listening = self._listening
            assert listening is not None, "it is connected"
            calling = asyncio.ensure_future(self.subscribe(added, removed))
            try:
                await asyncio.wait(
                    (calling, listening), timeout=self._call_s, return_when=asyncio.FIRST_COMPLETED
                )
            except asyncio.CancelledError:
                # One of the purgatories is closed: the others call it again.
                self._added |= {key for key in added if key not in self._removed}
                self._removed |= {key for key in removed if key not in self._added}
                raise
            finally:
                # The call must not change the subscriptions of another session.
                calling.cancel()
                results: list[object] = [*await asyncio.gather(calling, return_exceptions=True)]
            if results != [None] and not listening.done():
                # A new connection subscribes to all keys.
                log_safely(
                    "warning", "relay_subscribe_failed", relay=repr(self), error=repr(results[0])
                )
                listening.cancel()

    async def send(self, key: str, number: int | None, sender: Receiver) -> None:
        """Send a message soon; waits only where too many keys wait to be sent.

        Other purgatories of its name in this process get it at once. While none is attached, it is
        lost.
        """
        for receiver in self._receivers:
            if receiver is not sender and receiver.name == sender.name:
                receiver.receive(key, number)
        if not self._tasks:
            self._lost += 1
            self._observe("lost", 1)
            return
        sent = sent_key(sender.name, key)
        waiting = self._unsent.get(sent)
        if waiting is None or (number is not None and number > waiting):
            self._unsent[sent] = number
        if self._begins_at_once and self._begun is None and not self._sending.locked():
            self._begun = self._begin()
        self._to_send.set()
        if len(self._unsent) >= MOST_UNSENT:
            self._has_room.clear()
            await self._has_room.wait()

    # The relay's own tasks.

    async def _run(self) -> None:
        delay_s = _FIRST_DELAY_S
        was_connected = False
        while True:
            error: BaseException = ConnectionError("the connection ended")
            sessions = self._sessions
            self._listening = asyncio.ensure_future(self.listen())
            try:
                await self._listening
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    self._listening.cancel()
                    await asyncio.gather(self._listening, return_exceptions=True)
                    raise
                error = ConnectionError("it could not subscribe")
            except Exception as failure:
                error = failure
            self._end_session()
            if self._sessions > sessions:
                delay_s, was_connected = _FIRST_DELAY_S, True
            if isinstance(error, RelayError) and not was_connected:
                self._set_state("refused", error)
                log_safely("error", "relay_refused", relay=repr(self), error=str(error))
                self._attempted.set()
                return
            # A server that begins to refuse may be about to be restored: it worked before.
            if self._state.name != "deaf" or self._state.error is None:
                self._set_state("deaf", error)
                log_safely("warning", "relay_deaf", relay=repr(self), error=repr(error))
            self._attempted.set()
            await asyncio.sleep(delay_s * random.uniform(0.5, 1))
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _end_session(self) -> None:
        self._is_connected = False
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None

    async def _catch_up(self) -> None:
        delay_s = _FIRST_DELAY_S
        unread = self._receivers[:]
        while True:
            await self.sync_subscriptions()  # to keys that came while it was connecting
            found = await asyncio.gather(
                *(receiver.read_all() for receiver in unread), return_exceptions=True
            )
            # The error of a read is logged by its purgatory; the others have read.
            unread = [
                receiver
                for receiver, error in zip(unread, found, strict=True)
                if error is not None and receiver in self._receivers
            ]
            if not unread:
                break
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
        was_deaf_s = time.monotonic() - self._since_s
        self._set_state("live", None)
        log_safely("info", "relay_live", relay=repr(self), after_s=round(was_deaf_s, 3))
        self._attempted.set()

    def _set_state(
        self, name: Literal["closed", "deaf", "live", "refused"], error: BaseException | None
    ) -> None:
        now_s = time.monotonic()
        if self._state.name == "deaf":
            if name == "deaf":
                self._state = RelayState(name, self._state.since, error)
                return
            self._deaf_s += now_s - self._since_s
            self._observe("deaf_s", now_s - self._since_s)
        self._since_s = now_s
        self._state = RelayState(name, time.time(), error)
        self._observe("deaf", name in ("deaf", "refused"))

    def _observe(self, event: str, amount: float) -> None:
        for observer in self.observers.values():
            observer(event, amount)

    async def _send_all(self) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            await self._send_rest()

    async def _send_rest(self) -> None:
        """Return once everything is sent, or lost, also what another call has begun to send."""
        async with self._sending:
            while self._begun is not None or self._unsent:
                begun, self._begun = self._begun or self._begin(), None
                await self._finish(begun)

    def _begin(self) -> _Publication:
        numbers, self._unsent = self._unsent, {}
        self._has_room.set()
        try:
            if not self._is_connected:
                raise ConnectionError("the relay is not connected")
            return _Publication(numbers, self.publish(numbers))
        except Exception as error:
            return _Publication(numbers, error)

    async def _finish(self, publication: _Publication) -> None:
        numbers, sending = publication
        try:
            if isinstance(sending, Exception):
                raise sending
            if sending is not None:
                async with asyncio.timeout(self._call_s):
                    await sending
            self._sent += len(numbers)
            self._observe("sent", len(numbers))
        except Exception as error:
            self._lost += len(numbers)
            self._observe("lost", len(numbers))
            if self._state.name == "live":
                log_safely(
                    "warning",
                    "relay_publish_failed",
                    relay=repr(self),
                    messages=len(numbers),
                    error=repr(error),
                )


async def cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel a task of a relay, and wait until it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Await a coroutine to its end, also if this task is cancelled meanwhile."""
    task = asyncio.create_task(coroutine)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            is_cancelled = True
    task.result()
    if is_cancelled:
        raise asyncio.CancelledError
