"""The network in memory: TCP's guarantees hold, and connections break as they do on TCP."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.virtual import World

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


_kept: list[object] = []
"""Ends of connections that are open until their world ends."""


@pytest.fixture(autouse=True)
def _forget_connections() -> Iterator[None]:
    yield
    _kept.clear()


async def _connect(port: int, tls: ssl.SSLContext | None = None) -> Streams:
    streams = await asyncio.open_connection("localhost", port, ssl=tls)
    _kept.append(streams)
    return streams


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _echoing(tls: ssl.SSLContext | None = None) -> tuple[asyncio.Server, int]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0, ssl=tls)
    return server, server.sockets[0].getsockname()[1]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    chunks=st.lists(st.binary(min_size=1, max_size=300_000), max_size=8),
    bandwidth=st.sampled_from([None, 100_000.0, 1e9]),
)
def test_network_delivers_the_bytes_that_were_sent(
    seed: int, chunks: list[bytes], bandwidth: float | None
) -> None:
    async def application() -> bytes:
        _, port = await _echoing()
        reader, writer = await _connect(port)
        for chunk in chunks:
            writer.write(chunk)
        writer.write_eof()
        return await reader.read()

    with World(seed) as world:
        world.network.latency("0us..50ms")
        world.network.bandwidth_bytes_per_s(bandwidth)
        assert world.run(application()) == b"".join(chunks)


def test_plain_network_has_constant_latency_and_no_loss() -> None:
    async def application() -> float:
        _, port = await _echoing()
        reader, writer = await _connect(port)
        before_s = world.now_s
        for _ in range(10):
            writer.write(bytes(10_000))
            await reader.readexactly(10_000)
        return world.now_s - before_s

    with World(plain_network=True) as world:
        assert str(world.network) == "latency 1.1ms, nothing lost"
        world.network.latency("10ms..20ms")
        world.network.bandwidth_bytes_per_s(1_000)
        world.network.loss(1)
        assert world.run(application()) == pytest.approx(0.3)
        assert str(world.network) == "latency 15ms, nothing lost"
        with pytest.raises(ValueError, match="loss must be from 0 to 1"):
            world.network.loss(2)
    with World() as world:
        world.network.bandwidth_bytes_per_s(1_000)
        world.network.loss(0.001)
        text = "latency 0.2ms..2ms, 1,000 bytes/s, 0.100% of segments lost"
        assert str(world.network) == text


def test_latency_and_bandwidth_delay_data() -> None:
    async def application() -> float:
        _, port = await _echoing()
        reader, writer = await _connect(port)
        before_s = world.now_s
        writer.write(bytes(100_000))
        await reader.readexactly(100_000)
        return world.now_s - before_s

    with World() as world:
        world.network.latency("10ms")
        world.network.bandwidth_bytes_per_s(1_000_000)
        # Ten milliseconds each way, and a tenth of a second for the bytes, of which the first are
        # on their way back when the last are sent.
        assert 0.15 <= world.run(application()) <= 0.2


def test_reader_that_stops_reading_blocks_the_sender() -> None:
    async def application() -> tuple[bool, int]:
        came: list[Streams] = []
        server = await asyncio.start_server(lambda r, w: came.append((r, w)), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        _, writer = await _connect(port)
        writer.write(bytes(4_000_000))
        draining = asyncio.create_task(writer.drain())
        await asyncio.sleep(60)
        stopped = not draining.done()
        data = await came[0][0].readexactly(4_000_000)
        await draining
        return stopped, len(data)

    with World() as world:
        assert world.run(application()) == (True, 4_000_000)


def test_connection_to_a_closed_port_is_refused() -> None:
    with World() as world, pytest.raises(ConnectionRefusedError):
        world.run(_connect(9))


def test_address_can_be_bound_once() -> None:
    async def application() -> None:
        server, port = await _echoing()
        with pytest.raises(OSError, match="in use"):
            await asyncio.start_server(_echo, "127.0.0.1", port)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        server.close()
        await server.wait_closed()
        (await asyncio.start_server(_echo, "127.0.0.1", port)).close()

    with World() as world:
        world.run(application())


def test_partition_holds_back_sent_data() -> None:
    async def application() -> tuple[bytes, float]:
        with world.node("server"):
            _, port = await _echoing()
        reader, writer = await _connect(port)
        partition = world.network.partition("client", "server")
        writer.write(b"late")
        asyncio.get_running_loop().call_later(100, partition.end)
        return await reader.readexactly(4), world.now_s

    with World() as world:
        data, now_s = world.run(application())
        assert data == b"late"
        assert 100 < now_s < 101


def test_long_partition_times_out_connections_with_sent_data() -> None:
    async def application() -> float:
        with world.node("server"):
            _, port = await _echoing()
        reader, writer = await _connect(port)
        with world.network.partition("client", "server"):
            writer.write(b"never")
            with pytest.raises(TimeoutError):
                await reader.read()
            broken_s = world.now_s
            with pytest.raises(TimeoutError):
                await _connect(port)
        return broken_s

    with World() as world:
        assert 900 < world.run(application()) < 1_000


def test_partition_delays_a_connection_attempt() -> None:
    async def application() -> tuple[list[float], float]:
        accepted_s: list[float] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted_s.append(world.now_s)
            writer.close()

        with world.node("server"):
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
        world.network.latency("1s")
        for begin, end in (("0.5s", 10), ("12.5s", 20)):
            world.at(begin, world.network.partition, "client", "server")
            asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + end, heal)
        await _connect(server.sockets[0].getsockname()[1])
        return accepted_s, world.now_s

    with World() as world:
        heal = world.network.heal
        accepted_s, connected_s = world.run(application())
    assert accepted_s == [pytest.approx(11, abs=0.1)], (
        "the connection attempt was in transit when the partition began"
    )
    assert connected_s == pytest.approx(12, abs=0.1)


def test_connection_closed_during_a_partition_is_reset_after_it() -> None:
    async def application() -> float:
        lost = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(5)
            writer.write(b"never")
            with pytest.raises(TimeoutError):
                await reader.read()
            lost.set_result(None)

        with world.node("server"):
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await _connect(server.sockets[0].getsockname()[1])
        writer.write(b"begin")
        await writer.drain()
        await asyncio.sleep(0.001)
        partition = world.network.partition("client", "server")
        await lost
        partition.end()
        writer.write(b"still there?")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        return world.now_s

    with World() as world:
        assert world.run(application()) < 1_000


def test_reset_is_seen_by_both_ends() -> None:
    ends: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError:
            ends.append("server")

    async def application() -> None:
        with world.node("server"):
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, _ = await _connect(server.sockets[0].getsockname()[1])
        await asyncio.sleep(1)
        assert world.network.reset("client", "server") == 1
        assert world.network.reset("client", "nobody") == 0
        with pytest.raises(ConnectionResetError):
            await reader.read()
        ends.append("client")
        await asyncio.sleep(1)

    with World() as world:
        world.run(application())
    assert sorted(ends) == ["client", "server"]


_LARGE = 10_000_000


async def _seen_by_client(sent: int, end: str) -> list[str]:
    """The outcomes for a client that sends so many bytes to a server that ends the connection."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        if end == "abort":
            writer.transport.abort()
            return
        if end == "write_eof and close":
            writer.write_eof()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await _connect(server.sockets[0].getsockname()[1])
    writer.write(bytes(sent))
    seen = []
    for waiting in (writer.drain(), reader.read()):
        try:
            seen.append(repr(await asyncio.wait_for(waiting, 5)))
        except (OSError, TimeoutError) as error:
            seen.append(type(error).__name__)
    for _ in range(3):  # the second write follows the response to the first
        writer.write(b"x")
        await asyncio.sleep(0.05)
    try:
        await writer.drain()
    except OSError as error:
        seen.append(type(error).__name__)
    writer.close()
    server.close()
    return seen


@pytest.mark.parametrize(
    ("sent", "end", "expected"),
    [
        *(
            (10, end, "None b'' BrokenPipeError")
            for end in ("close", "write_eof and close", "abort")
        ),
        *((_LARGE, end, " ".join(["ConnectionResetError"] * 3)) for end in ("close", "abort")),
        (_LARGE, "write_eof and close", " ".join(["BrokenPipeError"] * 3)),
    ],
)
def test_close_with_unread_data_resets_the_connection(sent: int, end: str, expected: str) -> None:
    real = asyncio.run(_seen_by_client(sent, end))
    with World() as world:
        assert world.run(_seen_by_client(sent, end)) == real == expected.split()


def test_data_written_before_a_close_arrives_before_the_reset() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)
        writer.write(bytes(_LARGE))
        writer.close()

    async def application() -> int:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await _connect(server.sockets[0].getsockname()[1])
        writer.write(bytes(_LARGE))
        received = len(await reader.readexactly(_LARGE))
        with pytest.raises(ConnectionResetError):
            await writer.drain()
        return received

    with World() as world:
        assert world.run(application(), timeout="1min") == _LARGE


def test_half_open_connection_gets_no_reset() -> None:
    async def application() -> bool:
        with world.node("server"):
            _, port = await _echoing()
        reader, writer = await _connect(port)
        await asyncio.sleep(1)
        assert world.network.forget("server") == 1
        writer.write(b"anybody there?")
        try:
            await asyncio.wait_for(reader.read(1), 60)
        except TimeoutError:
            return True
        return False

    with World() as world:
        assert world.run(application())


def test_loss_breaks_connections() -> None:
    async def application() -> int:
        _, port = await _echoing()
        broken = 0
        for _ in range(50):
            reader, writer = await _connect(port)
            try:
                for _ in range(20):
                    writer.write(b"x")
                    await reader.readexactly(1)
            except (ConnectionError, asyncio.IncompleteReadError):
                broken += 1
            writer.close()
        return broken

    with World() as world:
        world.network.loss(0.01)
        assert 5 < world.run(application()) < 40


def _self_signed(folder: Path) -> Path:
    both = folder / "both.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout key.pem -out made.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    both.write_text((folder / "key.pem").read_text() + (folder / "made.pem").read_text())
    return both


def test_tls_encrypts_connections(tmp_path: Path) -> None:
    both = _self_signed(tmp_path)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(both)
    client_side = ssl.create_default_context(cafile=both)

    async def application() -> tuple[bytes, str]:
        _, port = await _echoing(server_side)
        reader, writer = await _connect(port, client_side)
        writer.write(b"secret")
        data = await reader.readexactly(6)
        version = writer.get_extra_info("ssl_object").version()
        writer.close()
        await writer.wait_closed()
        return data, version

    with World() as world:
        data, version = world.run(application())
    assert data == b"secret"
    assert version == "TLSv1.3"


@pytest.mark.parametrize("text", ["", "1", "2ms..1ms", "fast", "1ms..", "-1ms"])
def test_invalid_latency_is_refused(text: str) -> None:
    with World() as world, pytest.raises(ValueError, match=r"duration|short"):
        world.network.latency(text)


class _Notes(asyncio.Protocol):
    """Records its calls."""

    def __init__(self) -> None:
        self.report: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.report.append("made")

    def data_received(self, data: bytes) -> None:
        self.report.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.report.append(exc)


class _Greets(asyncio.Protocol):
    """Sends data at once, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


def test_first_data_of_a_server_follows_connection_made() -> None:
    async def application() -> list[_Notes]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Greets, "127.0.0.1", 25)
        made = [await loop.create_connection(_Notes, "127.0.0.1", 25) for _ in range(50)]
        await asyncio.sleep(1)
        server.close()
        return [protocol for _, protocol in made]

    with World() as world:
        assert all(one.report == ["made", b"hello", None] for one in world.run(application()))


def test_early_reset_is_reported_after_connection_made() -> None:
    async def application() -> list[_Notes]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Greets, "127.0.0.1", 25)
        made = []
        for number in range(50):
            world.at(f"{20 * number + 10}ms", world.network.reset)
            connecting = loop.create_connection(_Notes, "127.0.0.1", 25)
            await asyncio.sleep((20 * number + 9) / 1_000 - world.now_s)
            made.append(await connecting)
        await asyncio.sleep(1)
        server.close()
        return [protocol for _, protocol in made]

    with World() as world:
        world.network.latency("0.1ms..1ms")
        reports = [one.report for one in world.run(application())]
    assert all(one[0] == "made" and one[-1] != "made" for one in reports)
    assert any(isinstance(one[1], ConnectionResetError) for one in reports)


def test_large_write_arrives_in_segments_over_a_slow_network() -> None:
    async def application() -> tuple[int, float]:
        _, port = await _echoing()
        reader, writer = await _connect(port)
        writer.write(b"x" * 100_000)
        writer.write_eof()
        size, longest_s, last_s = 0, 0.0, world.now_s
        while data := await reader.read(100_000):
            size += len(data)
            longest_s, last_s = max(longest_s, world.now_s - last_s), world.now_s
        return size, longest_s

    with World() as world:
        world.network.bandwidth_bytes_per_s(10_000)
        size, longest_s = world.run(application())
        assert world.now_s == pytest.approx(10, rel=0.1)
    assert (size, longest_s < 1) == (100_000, True)


def test_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    pem = _self_signed(tmp_path)
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(pem)

    async def application() -> None:
        _, port = await _echoing(server_tls)
        with pytest.raises(ssl.SSLCertVerificationError):
            await _connect(port, ssl.create_default_context())

    with World() as world:
        world.run(application())


def test_connection_can_be_upgraded_to_tls(tmp_path: Path) -> None:
    pem = _self_signed(tmp_path)
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(pem)
    client_tls = ssl.create_default_context(cafile=pem)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go on\n")
        await writer.drain()
        await writer.start_tls(server_tls)
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    async def application() -> bytes:
        await asyncio.start_server(serve, "127.0.0.1", 25)
        reader, writer = await _connect(25)
        writer.write(b"STARTTLS\n")
        assert await reader.readline() == b"go on\n"
        await writer.start_tls(client_tls, server_hostname="localhost")
        writer.write(b"secret\n")
        line = await reader.readline()
        writer.close()
        return line

    digests = set()
    for _ in range(3):
        with World(1) as world:
            assert world.run(application()) == b"secret\n"
            digests.add(world.digest)
    assert len(digests) == 1


def _one_trip(world: World, name: str, sizes: int = 1) -> float:
    """The duration of a request to a host with its response."""

    async def main() -> float:
        began = world.now_s
        reader, writer = await asyncio.open_connection(name, 80)
        connected = world.now_s
        writer.write(b"x" * sizes)
        await reader.readexactly(sizes)
        writer.close()
        assert connected - began > 0
        return world.now_s - connected

    return world.run(main())


def _serving(world: World, *names: str) -> None:
    async def run() -> None:
        await (await asyncio.start_server(_echo, port=80)).serve_forever()

    for name in names:
        world.host(name, run)
    world.pass_time("1s")


def test_link_has_its_own_latency_and_bandwidth() -> None:
    with World() as world:
        _serving(world, "near", "far")
        world.network.latency("1ms")
        world.network.link("client", "far").latency("100ms")
        assert world.network.link("far", "client") is world.network.link("client", "far")
        assert _one_trip(world, "near") == pytest.approx(0.002, abs=1e-4)
        assert _one_trip(world, "far") == pytest.approx(0.2, abs=1e-4)
        world.network.latency("3ms")
        world.network.link("near", "client").bandwidth_bytes_per_s(10_000)
        assert _one_trip(world, "near", 1_000) == pytest.approx(0.206, abs=1e-3)
        assert _one_trip(world, "far", 1_000) == pytest.approx(0.2, abs=1e-3)
        assert str(world.network) == (
            "latency 3ms, nothing lost; client|far: latency 100ms; client|near: 10,000 bytes/s"
        )


def test_link_has_its_own_loss() -> None:
    with World() as world:
        _serving(world, "near", "far")
        world.network.link("client", "far").loss(1.0)
        _one_trip(world, "near")
        with pytest.raises(ConnectionResetError):
            _one_trip(world, "far")
        world.network.link("client", "far").loss(0.0)
        world.network.loss(1.0)
        _one_trip(world, "far")
        with world.network.lose(1.0), pytest.raises(ConnectionResetError):
            _one_trip(world, "far")


def test_link_is_plain_if_the_network_is() -> None:
    with World(plain_network=True) as world:
        _serving(world, "far")
        link = world.network.link("client", "far")
        link.latency("100ms..300ms")
        link.loss(1.0)
        link.bandwidth_bytes_per_s(1)
        assert _one_trip(world, "far") == pytest.approx(0.4, abs=1e-4)
        with pytest.raises(ValueError, match="from 0 to 1"):
            link.loss(2)
