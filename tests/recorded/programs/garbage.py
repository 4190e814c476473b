"""Bytes that are no requests, requests that no client sends, and APIs that are rarely asked for."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence

from tests.recorded.codec import api_keys, versions_of
from tests.recorded.recorder import Connection, Recorder

_FETCH, _METADATA, _HANDSHAKE, _API_VERSIONS, _AUTHENTICATE = 1, 3, 17, 18, 36
_SHORT_BYTES = 60
_WAIT_S = 4.0


def _frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _header(key: int, version: int, correlation: int = 7) -> bytes:
    return struct.pack(">hhih", key, version, correlation, 1) + b"x"


def _length(length: int) -> bytes:
    return struct.pack(">i", length)


def _chunks() -> Mapping[str, Sequence[bytes]]:
    versions = _frame(_header(_API_VERSIONS, 0))
    none, flexible = b"\0\0\0\0", _header(_METADATA, 9)
    clients = struct.pack(">hhih", _METADATA, 1, 7, -1)
    unusual = {
        "no client id": clients + none,
        "client id of length -2": struct.pack(">hhih", _METADATA, 1, 7, -2) + none,
        "client id that is no UTF-8": clients[:-2] + b"\0\2\xff\xfe" + none,
        "name that is no UTF-8": _header(_METADATA, 1) + b"\0\0\0\1\0\2\xff\xfe",
        "short header": b"\0\3\0\1",
        "no body": _header(_METADATA, 1),
        "body that ends early": _header(_METADATA, 1) + b"\0\0\0\5",
        "bytes behind the body": _header(_METADATA, 1) + none + b"zzz",
        "bytes behind nothing": _header(_API_VERSIONS, 0) + b"zz",
        "array of length -5": _header(_METADATA, 1) + _length(-5),
        "array of two billions": _header(_METADATA, 1) + _length(2**31 - 1),
        "null array": _header(_METADATA, 1) + _length(-1),
        "unknown tag": flexible + b"\x01\x05\x02ab\x01\0\0\0\0",
        "endless number": flexible + b"\0" + b"\xff" * 6,
        "body without its fields": _header(_API_VERSIONS, 3),
        "handshake on a plain port": _header(_HANDSHAKE, 1) + b"\0\5PLAIN",
        "authentication on a plain port": _header(_AUTHENTICATE, 0) + none,
    }
    requests = {
        f"api {key} v{version}": _header(key, version) + b"\0" * size
        for key, version, size in (
            *((999, 0, 0), (-1, 0, 0), (4, 0, 0), (_METADATA, 99, 0), (_METADATA, -1, 0)),
            *((_FETCH, 3, 50), (0, 2, 50), (0, 0, 50)),
        )
    }
    lengths = (0, -1, 104_857_601, 104_857_600, 2**31 - 1)
    return {
        "HTTP": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
        "TLS": [bytes.fromhex("160301020001000001fc0303") + b"\0" * 500],
        **{f"length {length}": [_length(length)] for length in lengths},
        "length 1": [_frame(b"x")],
        "four empty frames": [_length(0) * 4],
        **{name: [_frame(data)] for name, data in (unusual | requests).items()},
        "two requests at once": [versions + _frame(_header(_API_VERSIONS, 0, 8))],
        "a byte at a time": [bytes([byte]) for byte in versions],
    }


async def bytes_of_no_request(recorder: Recorder) -> None:
    for name, chunks in _chunks().items():
        await _send(recorder, name, chunks)
    versions = _frame(_header(_API_VERSIONS, 0))
    await _send(recorder, "request, then the end", [versions], ends=True)
    await _send(recorder, "half a request, then the end", [versions[:8]], ends=True)


async def _send(recorder: Recorder, name: str, chunks: Sequence[bytes], ends: bool = False) -> None:
    connection = await Connection.open(*recorder.addresses[min(recorder.addresses)])
    try:
        for chunk in chunks:
            connection.writer.write(chunk)
            await asyncio.sleep(0.02)
        if ends:
            connection.writer.write_eof()
        async with asyncio.timeout(_WAIT_S):
            data = await connection.reader.read(100_000)
        if not data:
            recorder.note(name, "closed")
        else:
            size = len(data) if len(data) < _SHORT_BYTES else "long"
            recorder.note(name, f"answer of {size}: {data[4:10].hex()}")
    except TimeoutError:
        recorder.note(name, "silent")
    except OSError:
        recorder.note(name, "closed")
    finally:
        connection.close()


_RARE = (
    *("DescribeQuorum", "UpdateFeatures", "GetTelemetrySubscriptions", "PushTelemetry"),
    *("DescribeDelegationToken", "CreateDelegationToken", "RenewDelegationToken"),
    *("ExpireDelegationToken", "UnregisterBroker", "AllocateProducerIds", "AddRaftVoter"),
    *("RemoveRaftVoter", "StreamsGroupHeartbeat", "StreamsGroupDescribe", "ReadShareGroupState"),
    *("Vote", "BrokerHeartbeat", "BrokerRegistration", "AlterPartition", "Envelope"),
    *("SaslHandshake", "ConsumerGroupDescribe", "DescribeClientQuotas", "WriteTxnMarkers"),
)


async def rare_requests(recorder: Recorder) -> None:
    """Record the errors of empty requests alone."""
    for api in _RARE:
        assert api in api_keys(), api
        for version in versions_of(api):
            answer = await recorder.ask(api, version, "with defaults", {}, timeout_s=4)
            step = recorder.steps[-1]
            if answer:
                kept = {key: answer.get(key) for key in ("ErrorCode", "ThrottleTimeMs")}
                recorder.steps[-1] = step._replace(answer=kept)
