"""The page's files over HTTP: what is given to whom, and what is told to browsers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import ClientResponse, ClientSession, web
from yarl import URL

from purgatory.view.page_server import access_guard, add_page

ROOT = Path(__file__).parents[3]
Ask = Callable[..., Awaitable[ClientResponse]]


def _run(main: Callable[[Ask], Awaitable[None]], token: str | None = None) -> None:
    async def run() -> None:
        app = web.Application(middlewares=[access_guard("127.0.0.1", token)])
        add_page(app)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]

        async def ask(path: str, **headers: str) -> ClientResponse:
            url = URL(f"http://127.0.0.1:{port}{path}", encoded=True)
            async with session.get(url, headers=headers) as answer:
                await answer.read()
                return answer

        try:
            async with ClientSession() as session:
                await main(ask)
        finally:
            await runner.cleanup()

    asyncio.run(run())


def test_each_response_has_a_content_security_policy() -> None:
    async def main(ask: Ask) -> None:
        for path, status in (("/page/icon.svg", 200), ("/page/no.js", 404), ("/wheel/walk", 200)):
            answer = await ask(path)
            assert answer.status == status
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cache-Control"] == "no-store"
        icon = await ask("/page/icon.svg")
        assert icon.headers["Content-Type"] == "image/svg+xml; charset=utf-8"
        assert (await icon.text()).startswith("<svg ")

    _run(main)


@pytest.mark.parametrize(
    "path",
    [
        "/page/../page_server.py",
        "/page/..%2fpage_server.py",
        "/page/%2e%2e/page_server.py",
        "/page/..%5cpage_server.py",
        "/page/page_server.py",
        "/page//etc/passwd.js",
        "/page/icon.svg%00.js",
        "/page/.js",
        "/page/",
        "/page/a/icon.svg",
        "/wheelxhtml",
        "/index.html",
    ],
)
def test_no_path_leads_out_of_the_folder(path: str) -> None:
    async def main(ask: Ask) -> None:
        assert (await ask(path)).status == 404

    _run(main)


def test_token_is_required_for_data_but_not_for_the_page() -> None:
    async def main(ask: Ask) -> None:
        assert (await ask("/page/icon.svg")).status == 200
        assert (await ask("/page/icon.svg", Authorization="Bearer wrong")).status == 200
        assert (await ask("/wheel/walk")).status == 401
        assert (await ask("/wheel/walk", Authorization="Bearer right")).status == 200
        assert (await ask("/wheel/walk?token=right")).status == 401
        assert (await ask("/wheel/walk", Authorization="Bearer \udcff")).status == 401
        assert (await ask("/page/icon.svg", Host=socket.gethostname())).status == 200
        # Pages of others: by a name that leads here, or from elsewhere.
        assert (await ask("/page/icon.svg", Host="rebound.example")).status == 403
        assert (await ask("/page/icon.svg", Origin="http://evil.example")).status == 403

    _run(main, token="right")


def test_without_a_token_the_host_is_an_address() -> None:
    async def main(ask: Ask) -> None:
        for path in ("/page/icon.svg", "/wheel/walk"):
            assert (await ask(path, Host="localhost:80")).status == 200
            assert (await ask(path, Host="rebound.example")).status == 403
            assert (await ask(path, Host="a-name-of-this-machine")).status == 403

    _run(main)


def test_page_is_served_from_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        for package in ("purgatory", "timer"):
            for path in (ROOT / package).rglob("*"):
                if path.suffix in {".py", ".svg", ".html", ".js", ".css"}:
                    packed.write(path, path.relative_to(ROOT))
    code = (
        "import asyncio; from aiohttp.test_utils import make_mocked_request as request;"
        "from purgatory.view import page_server as r;"
        "assert 'packed.zip' in r.__file__;"
        "asked = request('GET', '/', match_info={'name': 'icon.svg'});"
        "print(asyncio.run(r.page_file(asked)).body.decode()[:4])"
    )
    environment = {"PYTHONPATH": str(tmp_path / "packed.zip")}
    told = subprocess.check_output(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, text=True
    )
    assert told == "<svg\n"
