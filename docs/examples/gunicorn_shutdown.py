"""gunicorn's configuration for prefork_gunicorn.py: at SIGTERM a worker answers all who wait in it.

A worker sets its handlers of signals when it begins; what is here comes after that, in each worker.
"""

from __future__ import annotations


def post_worker_init(worker: object) -> None:
    """Close the worker's purgatory at the signals that end the worker."""
    from prefork_gunicorn import purgatory

    from purgatory import close_on_signals

    close_on_signals(purgatory)
