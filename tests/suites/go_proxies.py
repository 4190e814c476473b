"""The needs of sarama's tests beside brokers: a proxy in front of each, and Docker to stop one.

Toxiproxy, which Go builds, stands at the addresses that clients are given. A command `docker`
stops and starts brokers of a cluster of ours.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.suites.sources import BUILD, ROOT, TOXIPROXY, MissingError, go_program

PROXY = "127.0.0.1"
BEHIND = "127.0.0.2"
"""The address of the brokers themselves, at the same ports."""

FIRST_PORT = 29_091
"""The first of five ports, as sarama's tests know them."""

RACKS = Path(__file__).with_name("go_racks.toml")
"""The setting of five brokers' racks."""

CONTROL_PORT = 26_790
_API_PORT = 28_474
_BROKERS = 5
_STARTS_S = 10.0


@contextmanager
def running_proxies() -> Iterator[Mapping[str, str]]:
    """Run the proxies while the block runs; yield variables of the tests.

    Raises:
        MissingError: Toxiproxy can't be built, or does not start.
    """
    program = go_program("github.com/Shopify/toxiproxy/v2", TOXIPROXY, "cmd/server")
    proxies = [
        {
            "name": f"kafka{place + 1}",
            "listen": f"{PROXY}:{FIRST_PORT + place}",
            "upstream": f"{BEHIND}:{FIRST_PORT + place}",
            "enabled": True,
        }
        for place in range(_BROKERS)
    ]
    settings = BUILD / "toxiproxy.json"
    settings.write_text(json.dumps(proxies), encoding="utf-8")
    words = ["-host", PROXY, "-port", str(_API_PORT), "-config", str(settings)]
    with (
        (BUILD / "toxiproxy.log").open("wb") as log,
        subprocess.Popen([str(program), *words], stdout=log, stderr=log) as process,
    ):
        try:
            _await(process)
            yield {"TOXIPROXY_ADDR": f"http://{PROXY}:{_API_PORT}"}
        finally:
            process.terminate()


def _await(process: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + _STARTS_S
    while True:
        with suppress(OSError), socket.create_connection((PROXY, _API_PORT), 1):
            return
        if process.poll() is not None or time.monotonic() > ends_s:
            raise MissingError(f"Toxiproxy did not start: {BUILD / 'toxiproxy.log'}")
        time.sleep(0.05)


def docker() -> Path:
    """Write a command for `docker compose stop kafka-3` and `docker compose start kafka-3`."""
    script = BUILD / "docker" / "docker"
    script.parent.mkdir(exist_ok=True)
    fault = f"{shlex.quote(sys.executable)} -m purgatory fault"
    control = f"--control http://{PROXY}:{CONTROL_PORT}"
    script.write_text(
        f"#!/bin/sh\ncd {shlex.quote(str(ROOT))}\ncase $2 in\n"
        f"stop) exec {fault} {control} kill ${{3#kafka-}} ;;\n"
        f"start) {fault} {control} revive ${{3#kafka-}} || true ;;\nesac\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script
