"""Serves the page that teaches the wheel, on the loopback interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from purgatory.view.access_guard import access_guard
from purgatory.view.page_routes import add_page
from purgatory.view.wheel_walks import add_wheel_walks

_HOST = "127.0.0.1"


@asynccontextmanager
async def wheel_page() -> AsyncIterator[str]:
    """Serve the page as long as the context lasts; its address is what is entered."""
    app = web.Application(middlewares=[access_guard(_HOST, None)])
    add_page(app)
    add_wheel_walks(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, _HOST, 0).start()
        yield f"http://{_HOST}:{runner.addresses[0][1]}/wheel.html"
    finally:
        await runner.cleanup()
