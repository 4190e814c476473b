"""The command line: ``purgatory``, or ``python -m purgatory``."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130


def run() -> None:
    """Run the command that the process was started with, and exit with its status."""
    # pyarrow imports numpy, whose threads for matrices would spin in vain.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        status = _status()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except KeyboardInterrupt:  # Ctrl-C while the command was imported
        status = _INTERRUPTED
    # After Ctrl-C inside of an `exec`, such as one that makes a dataclass, Python would end by
    # SIGINT instead of with this status, unless there was another `exec` since.
    exec("")
    raise SystemExit(status)


def _status() -> int:
    try:
        from purgatory.import_names import check_purgatory

        check_purgatory()
    except ImportError as error:
        print(f"purgatory: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    try:
        from purgatory.cli.main import main
    except ModuleNotFoundError as error:
        # The library can be installed without the packages of its command line.
        if error.name not in {"click", "rich"}:
            raise
        if sys.argv[1:] == ["doctor"]:
            from purgatory.cli.doctor_command import doctor

            doctor()
            return 0
        print(
            f"purgatory: the command line needs {error.name}: pip install 'kafka-purgatory[cli]'; "
            "purgatory doctor does without it",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    return main()
