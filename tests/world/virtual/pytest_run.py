"""pytest as users of the package run it, in a process and a folder of its own.

The process is a fork of this one: it need not import again what is imported, which takes longer
than most of the tests that run in it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NoReturn

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

WITHOUT_OTHERS = ("-p", "no:cacheprovider", "-p", "no:faker", "-p", "no:hypothesispytest")
"""No plugins that these tests don't use: they are a third of such a process."""
INI = "[pytest]\naddopts = --strict-markers\n"


def run_pytest(
    folder: Path, *words: str, text: str, ini: str = INI, start: str = ""
) -> tuple[int, str]:
    """Run a file of tests; return the exit status, and the output.

    Args:
        folder: of the file, which is written, and of the other files that it needs.
        words: the command line's.
        text: of the file.
        ini: of the configuration.
        start: the folder below ``folder`` that it starts in.
    """
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text(ini)
    with TemporaryFile() as output:
        for stream in (sys.__stdout__, sys.__stderr__):
            assert stream is not None
            stream.flush()  # else the other process would write it, too
        process = os.fork()
        if process == 0:
            words = (*WITHOUT_OTHERS, *words)
            _end_with_pytest(folder / start, [*words], output)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        output.seek(0)
        return status, output.read().decode()


def _end_with_pytest(folder: Path, words: list[str], output: IO[bytes]) -> NoReturn:
    """End this process with pytest's status, without what the test around it has set."""
    status = -1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # workers in parallel ignore it
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
        assert sys.__stdout__ is not None and sys.__stderr__ is not None
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for name in [name for name in os.environ if "PYTEST" in name]:
            del os.environ[name]
        logging.getLogger().handlers.clear()
        warnings.resetwarnings()
        warnings.simplefilter("ignore", ResourceWarning)
        AssertionRewritingHook._warn_already_imported = _no_warning  # type: ignore[assignment]
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        status = int(pytest.main(words))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _no_warning(hook: AssertionRewritingHook, name: str) -> None:
    """Say nothing of plugins that were imported, and rewritten, before the fork."""
