"""What a running process is waiting for, as a page, as JSON, and for its log.

    app.mount("/debug/purgatory", debug.asgi_app())       # FastAPI, Starlette
    log.info("waiting", **purgatory.describe())

The pages only read. They name keys and operations, so they belong behind whatever guards the inner
side of a server.
"""

from purgatory.debug.description import describe
from purgatory.debug.pages import asgi_app, wsgi_app

__all__ = ["asgi_app", "describe", "wsgi_app"]
