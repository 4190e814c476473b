"""The page's own files over HTTP, for every server that has the page.

    GET /             index.html
    GET /wheel.html   the wheel alone
    GET /page/NAME    scripts, styles, the icon

The files say nothing of what is looked at, so that they need no token (``access_guard``).
"""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
_HEADERS = {
    # Names of groups and clients are text on the page; were one taken for markup, nothing of it
    # would run.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


async def page_file(request: web.Request) -> web.Response:
    """Answer with a file of the page, read from the package wherever that is."""
    name = request.match_info.get("name", "index.html")
    file = files("purgatory.view") / "page" / name
    if not file.is_file():
        return web.json_response({"error": f"the page has no file {name}"}, status=404)
    kind = _TYPES[name.rpartition(".")[2]]
    return web.Response(body=file.read_bytes(), content_type=kind, charset="utf-8")


def add_page(app: web.Application) -> None:
    """Have ``app`` serve the page, and tell browsers with every answer what a page may do."""
    app.on_response_prepare.append(_add_headers)
    app.add_routes(
        [
            web.get("/", page_file),
            web.get("/{name:wheel\\.html}", page_file),
            # No slash and one dot: no path leads out of the folder.
            web.get(f"/page/{{name:[A-Za-z0-9_-]+\\.(?:{'|'.join(_TYPES)})}}", page_file),
        ]
    )


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
