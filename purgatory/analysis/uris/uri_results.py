"""The folder of results at a URI: made beside its place, and moved there when all is in it.

Ground rules: until everything is written the place keeps what it had, and signals wait for the
move. HDFS and ABFS move a folder in one step. S3 copies its files one by one, so for a moment the
place has a part of them; whoever must not read that looks for the file `_SUCCESS`, which goes first
and comes last. What is left behind by a process that was killed is one folder beside the place,
`.NAME-` and some digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from purgatory.analysis.errors import OutputError
from purgatory.analysis.result_folder import COMPLETE, check_entries
from purgatory.analysis.termination import signals_held
from purgatory.analysis.uris.places import Uri
from purgatory.analysis.uris.store_files import StoreError, StoreFiles
from purgatory.analysis.uris.uri_folder import UriFolder
from purgatory.analysis.written_results import say_written


def check_uri_output(files: StoreFiles, out: Uri, inputs: list[str], overwrite: bool) -> None:
    """Refuse a place for the results that holds something else, as `check_output` does.

    Raises:
        OutputError: saying what is there and what to do.
    """
    with _told(out):
        there = files.status(str(out))
        place = (str(out) if there is None else there[0]).rstrip("/")
        if place.count("/") < 3:
            raise OutputError(f"--out {out}: is a whole store; name a folder in it")
        for one in inputs:
            if f"{one}/".startswith(f"{place}/") or f"{place}/".startswith(f"{one}/"):
                raise OutputError(f"--out {out} and the trace {one} overlap; name another folder")
        if there is None:
            return
        if not there[1]:
            raise OutputError(f"--out {out}: is a file; name a folder to be made")
        check_entries(str(out), set(files.names_in(place)), overwrite)


@contextmanager
def uri_output(files: StoreFiles, out: Uri) -> Iterator[UriFolder]:
    """A folder to write results into, which takes the place `out` at the end of the `with` block.

    Raises:
        OutputError: it can't be made there, be written to, or be moved there.
    """
    parent, _, name = str(out).rstrip("/").rpartition("/")
    working = f"{parent}/.{name}-{uuid4().hex[:8]}"
    try:
        with _told(out):
            files.write(f"{working}/begun", b"")  # before anything is computed in vain
            yield UriFolder(files, f"{working}/results")
            with signals_held():
                _move(files, f"{working}/results", f"{parent}/{name}", f"{working}/replaced")
                say_written(out)
    finally:
        files.delete_at_the_end(working)


def _move(files: StoreFiles, results: str, place: str, aside: str) -> None:
    marker = f"{place}/{COMPLETE}"
    was_complete = files.status(marker) is not None
    files.delete(marker)
    replaced = files.status(place) is not None
    is_free = not replaced
    try:
        if replaced:
            files.rename(place, aside)
            is_free = True
        files.rename(results, place)
    except StoreError:
        with suppress(StoreError):
            if is_free:
                files.delete(place)  # where a store copies, a part of the results
            if is_free and replaced:
                files.rename(aside, place)
            if was_complete:
                files.write(marker, b"")
        raise
    files.write(marker, b"")


@contextmanager
def _told(out: Uri) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise OutputError(f"--out {out}: {error}") from error
