"""Places as an engine reaches them: folders of this machine as they are, URIs with their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from purgatory.analysis.errors import TraceError
from purgatory.analysis.uris.listed_path import TracePath, listed
from purgatory.analysis.uris.places import Place, TableName, Uri
from purgatory.analysis.uris.store_files import StoreFiles


def reached(store: Callable[[], StoreFiles], places: Sequence[Place]) -> list[TracePath]:
    """Places where traces are; lists all files at URIs.

    Args:
        store: gives what reaches URIs; called only where there is one.
        places: folders and URIs.

    Raises:
        TraceError: nothing is there, or nothing can be reached there.
    """
    found: list[TracePath] = []
    for one in places:
        if isinstance(one, TableName):
            raise TraceError(f"{one}: is a table; give tables alone, or folders and URIs alone")
        found.append(_listed(store, one) if isinstance(one, Uri) else one)
    return found


def _listed(store: Callable[[], StoreFiles], uri: Uri) -> TracePath:
    try:
        return listed(store(), str(uri))
    except OSError as error:
        raise TraceError(str(error)) from error
