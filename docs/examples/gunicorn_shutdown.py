"""gunicorn's configuration for prefork_gunicorn.py and long_poll_flask.py.

A worker sets its signal handlers when it begins; what is here comes after that, in each worker: at
SIGTERM all that wait in the application's purgatory are answered.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from purgatory import close_on_signals


def post_worker_init(worker: Any) -> None:
    """Close the worker's purgatory at the signals that end the worker."""
    application = import_module(worker.app.app_uri.partition(":")[0])
    close_on_signals(application.purgatory)
