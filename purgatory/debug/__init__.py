"""The pending operations of a running process, as a page, as JSON, and for its log.

    app.mount("/debug/purgatory", debug.asgi_app())       # FastAPI, Starlette
    log.info("waiting", **purgatory.describe())

The pages only read. They name keys and operations, so they belong behind the guard of a server's
internal pages.
"""

from purgatory.debug.description import describe
from purgatory.debug.pages import asgi_app, wsgi_app

__all__ = ["asgi_app", "describe", "wsgi_app"]
