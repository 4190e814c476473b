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
  process was deaf; and the time that `read` takes.
* Nothing else: a bare `notify` may get lost (the next resync looks at the condition again), keys
  have no order among each other, and nothing is delivered exactly once.

Ground rules
------------
* Everything runs on the loop's thread.
* `_waits` counts the waits on each key; `_conditions` those among them that wait for a condition.
  The relay watches a key as long as it stands in `_waits`, and its value is forgotten after that.
* The first wait on a key puts it into `_unread`. One task takes all of it, subscribes, and only
  then reads, so a value that rises meanwhile is read, or arrives as a message. `_read_keys` are
  those that were read since the first wait on them.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from inspect import isawaitable
from typing import Any, NoReturn, Self, TypeVar

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.closing import ClosePolicy
from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.keys import KeyCollection, checked_number
from purgatory.core.recent_errors import log_safely
from purgatory.shared.relay import Relay, cancel
from timer.durations import checked_interval_s
from timer.errors import not_copied_error
from timer.former_names import former_argument

T = TypeVar("T")

Read = Callable[[list[str]], Mapping[str, int | None] | Awaitable[Mapping[str, int | None]]]
"""Reads the values of keys from the store; those that it does not have may be missing, or None."""

_LAST_READ_S = 1.0
"""How long a wait may read after its time was up, if the store was not read before."""

_END_S = 1.0
"""How long waits of other threads may take to end when their purgatory was closed."""


class SharedPurgatory:
    """Holds what coroutines of this process wait for, and hears what happens in the others.

    Make it inside a coroutine, on the loop that will use it, and enter it: ``async with``.

    Args:
        name: names it in logs and metrics: "Fetch".
        relay: carries messages to and from the other processes.
        read: returns the values of the keys it is given, as the store has them now; a coroutine
            function, or a plain one that does not block. A value may only rise.
        resync: seconds between two reads of all keys that are watched, or a timedelta.
        batch: how many keys ``read`` gets at most.
        max_pending: how many waits there may be at the same time; None for any number.
        broker_id: tells purgatories of one name apart.

    Raises:
        RuntimeError: no event loop is running.
        ValueError: resync is not positive, or batch or max_pending is below 1.
    """

    def __init__(
        self,
        name: str,
        relay: Relay,
        read: Read,
        resync: float | timedelta = 5.0,
        *,
        batch: int = 1_000,
        max_pending: int | None = None,
        broker_id: int = 0,
    ) -> None:
        resync = checked_interval_s("resync", resync)
        if batch < 1:
            raise ValueError(f"batch must be 1 or more keys, not {batch}")
        self.relay = relay
        self.local = AsyncPurgatory(name, broker_id=broker_id, max_pending=max_pending)
        """The purgatory in which the coroutines of this process wait."""
        self.reads = self.read_failures = 0
        self._read_values = read
        self._resync_s = resync
        self._batch = batch
        self._waits: Counter[str] = Counter()
        self._conditions: Counter[str] = Counter()
        self._unread: dict[str, None] = {}
        self._read_keys: set[str] = set()
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
        with self._watching([key], is_condition=False):
            try:
                return await self.local.wait_for_threshold(key, number, timeout)
            except TimeoutError:
                if key in self._read_keys or self.local.core.is_closed:
                    raise
                # Its time, perhaps none at all, was up before the store had been read.
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
                self.relay.watch(key)
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
                    self._read_keys.discard(key)
                    self.relay.unwatch(key)
                    self.local.forget(key)
                    self._has_changed.set()

    def _check_entered(self) -> None:
        if not (self._tasks or self.local.core.is_closed):
            raise RuntimeError(
                f"purgatory {self.name!r} is not entered: async with SharedPurgatory(...) as it"
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
        self.reads += 1
        failure: Exception | None = None
        try:
            found = self._read_values(keys)
            if isawaitable(found):
                found = await found
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
            self._read_keys.update(key for key in keys if key in self._waits)
        except Exception as error:
            self.read_failures += 1
            if not self._read_failed:
                self._read_failed = True
                log_safely("error", "read_failed", purgatory=self.name, exc_info=error)
            raise

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

    def _check(self) -> None:
        """Assert all invariants, on the loop's thread. O(keys)."""
        assert set(self.local.keys()) <= self._waits.keys()
        assert self._conditions <= self._waits
        assert self._unread.keys() | self._read_keys <= self._waits.keys()
        assert all(self.relay._watched[key] >= 1 for key in self._waits)
        self.local.core._check()


def check_key(key: object) -> None:
    """Raise TypeError if a relay can't send ``key``."""
    if not isinstance(key, str):
        raise TypeError(f"a key that processes share is a str, not {key!r}")


class ThreadedSharedPurgatory:
    """A `SharedPurgatory` for threads: it has an event loop on a thread of its own.

    Use it as a context manager, or close it. Its arguments are those of `SharedPurgatory`, but
    ``read`` is a plain function, which may block: it is called on a thread, one call at a time.
    After a fork, make another one in the child.

    Raises:
        RelayError: the relay can't work as it was set up.
    """

    def __init__(
        self,
        name: str,
        relay: Relay,
        read: Callable[[list[str]], Mapping[str, int | None]],
        resync: float | timedelta = 5.0,
        *,
        batch: int = 1_000,
        max_pending: int | None = None,
        broker_id: int = 0,
    ) -> None:
        reading = threading.Lock()

        def read_alone(keys: list[str]) -> Mapping[str, int | None]:
            with reading:
                return read(keys)

        async def read_on_thread(keys: list[str]) -> Mapping[str, int | None]:
            return await asyncio.to_thread(read_alone, keys)

        async def make() -> SharedPurgatory:
            shared = SharedPurgatory(
                name,
                relay,
                read_on_thread,
                resync,
                batch=batch,
                max_pending=max_pending,
                broker_id=broker_id,
            )
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
        """Complete all waits, leave the relay, and end the thread, once ``read`` has returned.

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
