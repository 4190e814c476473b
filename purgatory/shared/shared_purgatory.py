"""A purgatory in each process of a service: a value from any of them ends the waits of all.

    fetches.wait_for_threshold("log:7", 43)
        registers, so that a message finds it
        subscribes to the key, if it is the first here that waits on it
        reads the value from the store
        waits: for a message, for the next resync, for its timeout

Promises
--------
* Safe: no wait completes by a value that the store, or a caller of `advance`, never had.
* Live: if the store has a value of n or more, a wait for n ends within the latency of the relay or
  the resync interval, whichever is longer, also if messages were lost, the relay was down, or this
  process was deaf; and the time that `read` takes, which has a limit.
* Nothing else: a bare `notify` may get lost (the next resync looks at the condition again), keys
  have no order among each other, and nothing is delivered exactly once.

Ground rules
------------
* Everything runs on the loop's thread.
* `_waits` counts the waits on each key; `_conditions` those among them that wait for a condition.
  The relay watches a key as long as it stands in `_waits`, and its value is forgotten after that.
* The first wait on a key puts it into `_unread`. One task takes all of it, subscribes, and only
  then reads, so a value that rises meanwhile is read, or arrives as a message. `_read_at` has
  the number of the last read of each key since the first wait on it.
* `_late` are calls of `read` that were cancelled, and have yet to end.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from inspect import isawaitable, iscoroutinefunction
from typing import Any, NoReturn, Self, TypeVar

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.closing import ClosePolicy
from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.keys import KeyCollection, checked_number
from purgatory.core.recent_errors import log_safely
from purgatory.shared.arguments import check_key, check_read, checked_batch, checked_text
from purgatory.shared.relay import Relay, cancel, sent_key
from timer.durations import checked_interval_s, checked_timeout_s
from timer.errors import not_copied_error
from timer.former_names import former_argument
from timer.machine_time import time

T = TypeVar("T")

Read = Callable[[list[str]], Mapping[str, int | None] | Awaitable[Mapping[str, int | None]]]
"""Reads the values of keys from the store; those that it does not have may be missing, or None."""

ReadOnThread = Callable[[list[str]], Mapping[str, int | None]]

_LAST_READ_S = 1.0
"""The time that a wait may read after its timeout, if the store was not read before."""

_MOST_LATE = 8
"""Calls of `read` that were given up, and still run; `read` is not called while there are more."""

_END_S = 1.0
"""The time that waits of other threads may take to end after their purgatory was closed."""


class SharedPurgatory:
    """Holds what coroutines of this process wait for, and hears what happens in the others.

    Make it inside a coroutine, on the loop that will use it, and enter it: ``async with``.

    Args:
        name: what it holds: "Fetch". Purgatories of one name hear each other; logs and metrics have
            it, too.
        relay: carries messages to and from the other processes.
        read: returns the values of the keys it is given, as the store has them now; a coroutine
            function, or a plain one that does not block. A value may only rise.
        resync: seconds between two reads of all keys that are watched, or a timedelta.
        read_timeout: seconds that a call of ``read`` may take, or a timedelta; after that it is
            cancelled, has failed, and others go on. A plain function has no limit here.
        batch: how many keys ``read`` gets at most.
        max_pending: how many waits there may be at the same time; None for any number.
        broker_id: tells purgatories of one name apart.

    Raises:
        RuntimeError: no event loop is running.
        TypeError: an argument is none of these; the relay is no relay, or read takes no list.
        ValueError: resync or read_timeout is not positive, or batch or max_pending is below 1.
    """

    def __init__(
        self,
        name: str,
        relay: Relay,
        read: Read,
        resync: float | timedelta = 5.0,
        *,
        read_timeout: float | timedelta = 5.0,
        batch: int = 1_000,
        max_pending: int | None = None,
        broker_id: int = 0,
    ) -> None:
        checked_text("name", name)
        if not isinstance(relay, Relay):
            raise TypeError(f"relay must be a relay, as UnixRelay('/run/myservice'), not {relay!r}")
        check_read(read)
        self._resync_s = checked_interval_s("resync", resync)
        self._read_timeout_s = checked_interval_s("read_timeout", read_timeout)
        self._batch = checked_batch(batch)
        self.relay = relay
        self.local = AsyncPurgatory(name, broker_id=broker_id, max_pending=max_pending)
        """The purgatory in which the coroutines of this process wait."""
        self.reads = self.read_failures = 0
        self._read_values = read
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time: AbstractAsyncContextManager[None] = nullcontext()
        self._waits: Counter[str] = Counter()
        self._conditions: Counter[str] = Counter()
        self._unread: dict[str, None] = {}
        self._read_at: dict[str, int] = {}
        self._late: set[asyncio.Future[object]] = set()
        self._has_changed = asyncio.Event()
        self._read_failed = False
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        closed = " closed" if self.local.core.is_closed else ""
        pending = self.local.num_delayed
        return f"<{type(self).__name__} {self.name!r}{closed} by {self.relay!r}: {pending} pending>"

    def __reduce__(self) -> NoReturn:
        raise not_copied_error(self)

    @property
    def name(self) -> str:
        """Its name."""
        return self.local.name

    # Waiting.

    async def wait_for_threshold(
        self, key: str, number: int, timeout: float | timedelta | None = None
    ) -> int:
        """Wait until the value of ``key`` is ``number`` or more, in any process; return it.

        Args:
            key: text, as short as can be: longer than 200 bytes it is sent as a hash.
            number: a whole number of 64 bits.
            timeout: seconds, or a timedelta; None waits for ever. With 0 the store is read once,
                which may take a second at most.

        Raises:
            TimeoutError: the value was not seen to be that in time.
            PurgatoryClosedError, PurgatoryFullError, WaitCancelledError: as in ``AsyncPurgatory``.
            TypeError: the key is no text, or the number is no integer.
            ValueError: the number has more than 64 bits.
        """
        number = checked_number("threshold", key, number)
        reads = self.reads
        with self._watching([key], is_condition=False):
            try:
                return await self.local.wait_for_threshold(key, number, timeout)
            except TimeoutError:
                # Its time may have been up before the store had been read; if it had none at all, a
                # read for others that began before it doesn't count.
                since = reads if checked_timeout_s(timeout) <= 0 else 0
                if self._read_at.get(key, 0) > since or self.local.core.is_closed:
                    raise
                with suppress(Exception):
                    async with asyncio.timeout(_LAST_READ_S):
                        await self._read([key])
                value = self.local.value(key)
                if value is None or value < number:
                    raise
                return value

    async def wait(
        self,
        keys: KeyCollection[str] | Iterator[str],
        until: Callable[[], T],
        timeout: float | timedelta | None = None,
    ) -> T:
        """Wait until a ``notify`` on one of ``keys``, in any process, finds ``until()`` true.

        A ``notify`` may get lost between processes, so ``until`` is called at each resync, too.

        Raises what ``AsyncPurgatory.wait`` does.
        """
        if isinstance(keys, (str, bytes)):
            raise TypeError(f"keys must be a list of keys, not the single {keys!r}: use [{keys!r}]")
        keys = list(keys)
        with self._watching(keys, is_condition=True):
            return await self.local.wait(keys, until, timeout)

    @contextmanager
    def _watching(self, keys: Collection[str], *, is_condition: bool) -> Iterator[None]:
        self._check_entered()
        for key in keys:
            check_key(key)
        for key in keys:
            self._waits[key] += 1
            if is_condition:
                self._conditions[key] += 1
            if self._waits[key] == 1:
                self.relay.watch(self.name, key)
            # A condition can't tell the value, so the first wait for a number has it read.
            if self._waits[key] - (0 if is_condition else self._conditions[key]) == 1:
                self._unread[key] = None
                self._has_changed.set()
        try:
            yield
        finally:
            for key in keys:
                self._waits[key] -= 1
                if is_condition:
                    self._conditions[key] -= 1
                    if not self._conditions[key]:
                        del self._conditions[key]
                if not self._waits[key]:
                    del self._waits[key]
                    self._unread.pop(key, None)
                    self._read_at.pop(key, None)
                    self.relay.unwatch(self.name, key)
                    self.local.forget(key)
                    self._has_changed.set()

    def _check_entered(self) -> None:
        if not (self._tasks or self.local.core.is_closed):
            raise RuntimeError(
                f"purgatory {self.name!r} is not entered: async with SharedPurgatory(...) as it"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"purgatory {self.name!r} is of another event loop: make one on each loop, with a "
                "relay of its own"
            )

    # Waking.

    async def advance(self, key: str, value: int) -> int:
        """Say that the value of ``key`` is ``value`` now, after the store has it.

        Returns how many waits of this process it completed; the other processes hear of it soon.

        Raises:
            TypeError: the key is no text, or the value is no integer.
            ValueError: the value has more than 64 bits.
            RuntimeError: the purgatory is not entered.
        """
        self._check_entered()
        check_key(key)
        value = checked_number("value", key, value)
        completed = self._advance(key, value)
        await self.relay.send(key, value, self)
        return completed

    async def notify(self, key: str) -> int:
        """Check the conditions that wait on ``key``, here and, if the message arrives, elsewhere.

        Returns how many waits of this process it completed.

        Raises:
            TypeError: the key is no text.
            RuntimeError: the purgatory is not entered.
        """
        self._check_entered()
        check_key(key)
        completed = self.local.notify(key)
        await self.relay.send(key, None, self)
        return completed

    def receive(self, key: str, number: int | None) -> None:
        """Take a message of the relay."""
        if key in self._waits:
            if number is None:
                self.local.notify(key)
            else:
                self._advance(key, number)

    def _advance(self, key: str, value: int) -> int:
        completed = self.local.advance(key, value) if key in self._waits else 0
        return completed + (self.local.notify(key) if key in self._conditions else 0)

    # Reading.

    async def read_all(self) -> None:
        """Read the values of all keys that are watched, and check all conditions.

        Raises what ``read`` does, after the other batches were read.
        """
        await self._read(list(self._waits))

    async def _read(self, keys: list[str]) -> None:
        failure: Exception | None = None
        for first in range(0, len(keys), self._batch):
            batch = [key for key in keys[first : first + self._batch] if key in self._waits]
            with_values = [key for key in batch if self._conditions[key] < self._waits[key]]
            if with_values:
                try:
                    await self._read_batch(with_values)
                except Exception as error:
                    failure = error
            for key in batch:
                if key in self._conditions:
                    self.local.notify(key)
        if failure is not None:
            raise failure
        self._read_failed = False

    async def _read_batch(self, keys: list[str]) -> None:
        failure: Exception | None = None
        try:
            number, found = await self._call_read(keys)
            if not isinstance(found, Mapping):
                raise TypeError(f"read must return a mapping, as {{key: 42}}, not {found!r}")
            for key, value in found.items():
                if value is not None and key in self._waits:
                    try:
                        self.local.advance(key, checked_number("value", key, value))
                    except (TypeError, ValueError) as error:
                        failure = error  # and the other values hold
            if failure is not None:
                raise failure
            for key in keys:
                if key in self._waits:
                    self._read_at[key] = max(number, self._read_at.get(key, 0))
        except Exception as error:
            self.read_failures += 1
            if not self._read_failed:
                self._read_failed = True
                log_safely("error", "read_failed", purgatory=self.name, exc_info=error)
            raise

    async def _call_read(self, keys: list[str]) -> tuple[int, object]:
        """Return the number of a read, and what it found.

        Raises what ``read`` does, and TimeoutError after its time.
        """
        async with self._one_at_a_time:
            self.reads += 1
            number = self.reads
            if len(self._late) >= _MOST_LATE:
                raise TimeoutError(f"{len(self._late)} calls of read have yet to end")
            found = self._read_values(keys)
            if not isawaitable(found):
                return number, found
            reading: asyncio.Future[object] = asyncio.ensure_future(found)
            try:
                await asyncio.wait({reading}, timeout=self._read_timeout_s)
            finally:
                if not reading.done():  # and nobody waits until it has been cancelled
                    reading.cancel()
                    self._late.add(reading)
                    reading.add_done_callback(self._forget_late)
        if not reading.done():
            raise TimeoutError(f"read did not return within {self._read_timeout_s} s")
        if reading.cancelled():
            raise RuntimeError("read was cancelled")
        return number, reading.result()

    def _forget_late(self, reading: asyncio.Future[object]) -> None:
        self._late.discard(reading)
        if not reading.cancelled():
            reading.exception()  # not to be logged by the loop

    async def _read_unread(self) -> None:
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            unread, self._unread = list(self._unread), {}
            await self.relay.sync_subscriptions()
            # An error of it is logged, and the next resync reads again.
            await asyncio.gather(self._read(unread), return_exceptions=True)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._resync_s * random.uniform(0.8, 1))
            await asyncio.gather(self.read_all(), return_exceptions=True)

    # Opening and closing.

    async def __aenter__(self) -> Self:
        try:
            await self.relay.attach(self)
        except BaseException:
            await self.local.aclose()
            raise
        self._tasks = [
            asyncio.create_task(self._read_unread()),
            asyncio.create_task(self._resync()),
        ]
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    @former_argument("pending", "policy")
    async def aclose(
        self, policy: ClosePolicy = "fail", timeout: float | timedelta | None = 10.0
    ) -> int:
        """Complete all waits, as ``AsyncPurgatory.aclose`` does, and leave the relay."""
        try:
            return await self.local.aclose(policy, timeout)
        finally:
            if self.local.core.is_closed:  # and the arguments were right
                tasks, self._tasks = self._tasks, []
                try:
                    for task in tasks:
                        await cancel(task)
                finally:
                    if tasks:
                        await self.relay.detach(self)
                    if self._late:
                        await asyncio.wait(self._late, timeout=_END_S)

    def _check(self) -> None:
        """Assert all invariants, on the loop's thread. O(keys)."""
        assert set(self.local.keys()) <= self._waits.keys()
        assert self._conditions <= self._waits
        assert self._unread.keys() | self._read_at.keys() <= self._waits.keys()
        assert all(self.relay._watched[sent_key(self.name, key)] for key in self._waits)
        self.local.core._check()


class _Reader(threading.Thread):
    """One call of a plain ``read``. A daemon: one that hangs keeps no process from ending."""

    def __init__(self, read: ReadOnThread, keys: list[str], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.found: Future[Mapping[str, int | None]] = Future()
        self.found.set_running_or_notify_cancel()
        self.started_s = time.monotonic()
        self._read = read
        self._keys = keys

    def run(self) -> None:
        try:
            found = self._read(self._keys)
        except BaseException as error:
            self.found.set_exception(error)
        else:
            self.found.set_result(found)

    def join_until(self, end_s: float) -> None:
        """Wait until it has ended, or a time of the monotonic clock."""
        self.join(min(threading.TIMEOUT_MAX, max(0.0, end_s - time.monotonic())))


class ThreadedSharedPurgatory:
    """A `SharedPurgatory` for threads: it has an event loop on a thread of its own.

    Use it as a context manager, or close it. Its arguments are those of `SharedPurgatory`, but
    ``read`` is a plain function, which may block: it is called on a thread, one call at a time. One
    that has not returned within ``read_timeout`` is given up: it stays on its thread, and the next
    has another. After a fork, make another one in the child.

    Raises:
        RelayError: the relay can't work as it was set up.
        RuntimeError: purgatories of another event loop use the relay.
        TypeError, ValueError: as `SharedPurgatory`; or ``read`` is a coroutine function.
    """

    def __init__(
        self,
        name: str,
        relay: Relay,
        read: ReadOnThread,
        resync: float | timedelta = 5.0,
        *,
        read_timeout: float | timedelta = 5.0,
        batch: int = 1_000,
        max_pending: int | None = None,
        broker_id: int = 0,
    ) -> None:
        if iscoroutinefunction(read):
            raise TypeError(f"read must be a plain function here, which may block, not {read!r}")

        check_read(read)
        self._readers: list[_Reader] = []

        async def read_on_thread(keys: list[str]) -> Mapping[str, int | None]:
            self._readers = [reader for reader in self._readers if reader.is_alive()]
            if len(self._readers) >= _MOST_LATE:
                raise TimeoutError(f"{len(self._readers)} calls of read have yet to return")
            reader = _Reader(read, keys, f"{self._thread.name}-read")
            self._readers.append(reader)
            reader.start()
            return await asyncio.wrap_future(reader.found)

        async def make() -> SharedPurgatory:
            shared = SharedPurgatory(
                name,
                relay,
                read_on_thread,
                resync,
                read_timeout=read_timeout,
                batch=batch,
                max_pending=max_pending,
                broker_id=broker_id,
            )
            shared._one_at_a_time = asyncio.Lock()
            return await shared.__aenter__()

        self.relay = relay
        self.name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run_loop, name=f"SharedPurgatory-{broker_id}-{name}", daemon=True
        )
        self._is_closed = False
        self._calling = threading.Lock()
        self._closing = threading.Lock()
        self._thread.start()
        try:
            self.shared = self._call(make())
        except BaseException:
            self._end_thread()
            raise

    def __repr__(self) -> str:
        closed = " closed" if self._is_closed else ""
        pending = self.shared.local.num_delayed
        return f"<{type(self).__name__} {self.name!r}{closed} by {self.relay!r}: {pending} pending>"

    def __reduce__(self) -> NoReturn:
        raise not_copied_error(self)

    def wait_for_threshold(
        self, key: str, number: int, timeout: float | timedelta | None = None
    ) -> int:
        """Block this thread as `SharedPurgatory.wait_for_threshold` blocks a coroutine."""
        return self._call(self.shared.wait_for_threshold(key, number, timeout))

    def wait(
        self,
        keys: KeyCollection[str] | Iterator[str],
        until: Callable[[], T],
        timeout: float | timedelta | None = None,
    ) -> T:
        """Block as `SharedPurgatory.wait`; ``until`` is called on the loop's thread."""
        return self._call(self.shared.wait(keys, until, timeout))

    def advance(self, key: str, value: int) -> int:
        """As `SharedPurgatory.advance`, from any thread."""
        return self._call(self.shared.advance(key, value))

    def notify(self, key: str) -> int:
        """As `SharedPurgatory.notify`, from any thread."""
        return self._call(self.shared.notify(key))

    @former_argument("pending", "policy")
    def close(self, policy: ClosePolicy = "fail", timeout: float | timedelta | None = 10.0) -> int:
        """Complete all waits, leave the relay, and end the thread, once ``read`` has returned, or
        its time is up.

        Raises what `AsyncPurgatory.aclose` does.
        """
        self._check_thread()
        with self._closing:
            if self._is_closed:
                return 0
            try:
                return self._call(self._close(policy, timeout))
            finally:
                if self.shared.local.core.is_closed:
                    self._end_thread()
                    for reader in self._readers:
                        reader.join_until(reader.started_s + self.shared._read_timeout_s)

    async def _close(self, policy: ClosePolicy, timeout: float | timedelta | None) -> int:
        pending = await self.shared.aclose(policy, timeout)
        # The threads that waited get what their waits raise.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_END_S)
        return pending

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future: Future[T] | None = None
        try:
            self._check_thread()
            with self._calling:  # what is scheduled before the loop is stopped ends with it
                if self._is_closed:
                    raise PurgatoryClosedError(f"purgatory {self.name!r} was closed")
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            return future.result()
        except BaseException:
            if future is None:
                coroutine.close()
            else:
                future.cancel()  # interrupted: nobody waits for it any more
            raise

    def _check_thread(self) -> None:
        # Not by its number, which another thread gets once this one has ended.
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"this is the thread of purgatory {self.name!r}'s own event loop, which would wait "
                "for itself: call it from another one"
            )

    def _run_loop(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end_tasks())
        finally:
            self._loop.close()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    def _end_thread(self) -> None:
        with self._calling:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
