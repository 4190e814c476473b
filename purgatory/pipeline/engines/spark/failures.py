"""Spark's failures, each as one line: what ran out, where, and what to set."""

from __future__ import annotations

import re
import traceback

_HEAP = re.compile(
    r"OutOfMemoryError: (?:Java heap space|GC overhead)|SparkOutOfMemoryError"
    r"|UNABLE_TO_ACQUIRE_MEMORY|Unable to acquire \d+ bytes"
    r"|Not enough memory to build and broadcast|Command exited with code 52\b"
)
_BUFFERS = re.compile(r"OutOfMemoryError: (?:Cannot reserve|Direct buffer)|OutOfDirectMemoryError")
_THREADS = re.compile(r"OutOfMemoryError: unable to create")
_CONTAINER = re.compile(
    r"Container (?:killed|marked)|running beyond (?:physical|virtual) memory"
    r"|exceeding (?:physical )?memory limits|OOMKilled|(?:code|status:?|code:) ?137\b"
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded|could only be written to 0 of")
_RESULT = re.compile(r"is bigger than (?:local|spark\.driver\.)maxResultSize")
_EXECUTOR = re.compile(
    r"\(TID \d+\)\s+\((\S+) executor (\w+)\)|ExecutorLostFailure \(executor (\w+)"
)


def failure_text(message: str, stack: str, master: str) -> str:
    """One line on what Spark raised: what ran out, where, and what to set; else the best of it.

    Args:
        message: of the error.
        stack: all that is known of it (`stack_text`).
        master: of the session: on a local one, driver and executors are one Java.
    """
    reason = _reason(message)
    executor = _EXECUTOR.search(stack)
    is_local = master.startswith("local")
    if is_local or executor is None:
        where = "Java (driver and executor in one)" if is_local else "the driver"
        heap = "--memory"
    else:
        on_host = "" if executor[1] is None else f" on {executor[1]}"
        where, heap = f"executor {executor[2] or executor[3]}{on_host}", "spark.executor.memory"
    if _CONTAINER.search(stack):
        what = (
            f"{where} took more memory than its container or machine has: set "
            f"spark.executor.memoryOverhead higher, or {heap} lower"
        )
    elif _HEAP.search(stack):
        what = f"{where} ran out of heap: set {heap} higher"
    elif _BUFFERS.search(stack):
        what = f"{where} ran out of buffers, which may be as large as the heap: set {heap} higher"
    elif _THREADS.search(stack):
        what = f"{where} got no more threads: raise the limit of processes (ulimit -u, pids.max)"
    elif _DISK.search(stack):
        what = (
            f"{where} ran out of disk; what does not fit memory goes to TMPDIR, or to "
            "spark.local.dir or SPARK_LOCAL_DIRS where that is set: name a larger disk"
        )
    elif _RESULT.search(stack):
        what = "the driver got more rows than it may hold: set spark.driver.maxResultSize higher"
    else:
        return reason
    return f"{what} ({reason})"


def stack_text(error: BaseException) -> str:
    """All that is known of an error: Python's stack and Java's, as text for the log."""
    python = "".join(traceback.format_exception(error))
    java = getattr(error, "_stackTrace", None)
    return f"{python}\n{java}\n" if java else python


def _reason(stack: str) -> str:
    """The most informative line of a message: the first with a Java exception, or the first.

    Lines about a thread that waited for a failed one are skipped.
    """
    lines = [line.strip() for line in stack.strip().splitlines()] or ["nothing was said"]
    messages = (line.removeprefix("Caused by: ") for line in lines if "awaitResult" not in line)
    exceptions = (line for line in messages if re.match(r"[:\s]*[\w.$]+(Exception|Error):", line))
    return next(exceptions, lines[0]).lstrip(": ")
