"""Serves the page that teaches the wheel, on the loopback interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from purgatory.view.access_guard import access_guard
from purgatory.view.page_routes import add_page
from purgatory.view.wheel_walks import add_wheel_walks
from purgatory.view.why_not_served import not_served


@asynccontextmanager
async def wheel_page(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the page as long as the context lasts; its address is what is entered.

    Raises:
        ViewError: nobody can listen there.
    """
    app = web.Application(middlewares=[access_guard(host, None)])
    add_page(app)
    add_wheel_walks(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as error:
            raise not_served(host, port, error) from None
        yield f"http://{host}:{runner.addresses[0][1]}/wheel.html"
    finally:
        await runner.cleanup()
