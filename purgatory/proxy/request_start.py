"""The beginning of a request: what a proxy reads of each, as it comes in.

That is the header (API, version, number, client id) and, of a produce, the acks, which say whether
there is a response. After SaslHandshake 0, frames are tokens of a mechanism, without headers, until
one is a request again.

Ground rules: no state.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.listeners import Listener
from purgatory.cluster.protocol.connection import Limits, foreign_protocol
from purgatory.cluster.protocol.fixed_layouts import PRODUCE
from purgatory.cluster.protocol.frame_check import read_varint
from purgatory.cluster.protocol.wire import Request
from purgatory.proxy.addresses import is_known

PREFIX_BYTES = 4
_HEADER = struct.Struct(">ihhih")
"""The length, the API, its version, the request's number, the client id's length."""
_SHORT = struct.Struct(">h")
_PRODUCE_TRANSACTIONAL, _PRODUCE_FLEXIBLE = 3, 9
_MAX_FRAME_BYTES = Limits().frame_bytes
_MAX_TOKEN_BYTES = 512 * 1024
"""As Kafka's ``sasl.server.max.receive.size``. A token is kept until it is whole."""

_MAX_BEFORE_ACKS_BYTES = 64 * 1024
"""A produce has a transactional id, and tagged fields, before its acks: kept until these come."""


class Start(NamedTuple):
    """The beginning of a request, without its body; or of a token of SASL (None).

    ``size`` is that of the frame with its length.
    """

    request: Request | None
    size: int
    has_response: bool


def read_start(
    data: bytes | bytearray, at: int, listener: Listener, takes_tokens: bool
) -> Start | None:
    """Read the beginning of a request; None if more of it has to come.

    Args:
        data, at: the bytes, and where the request begins.
        listener: by which it came.
        takes_tokens: whether it may be a token of SASL.

    Raises:
        BadRequestError: that is no request.
    """
    if len(data) - at < PREFIX_BYTES:
        return None
    length = int.from_bytes(data[at : at + PREFIX_BYTES], "big", signed=True)
    if not 0 <= length <= _MAX_FRAME_BYTES:
        hint = foreign_protocol(bytes(data[at : at + PREFIX_BYTES]), listener)
        raise BadRequestError(hint or f"a request of {length} bytes")
    size = PREFIX_BYTES + length
    end = min(len(data), at + size)
    is_whole = end == at + size
    if takes_tokens:
        if end - at < min(size, _HEADER.size):
            return None  # it may be either
        if not _is_request(data, at, length):
            if length > _MAX_TOKEN_BYTES:
                raise BadRequestError(f"a token of SASL of {length} bytes")
            return Start(None, size, has_response=True) if is_whole else None
    if size < _HEADER.size:
        raise BadRequestError(f"a request of {length} bytes is shorter than a header")
    if end - at < _HEADER.size:
        return None
    _, api_key, version, correlation_id, id_size = _HEADER.unpack_from(data, at)
    id_at = at + _HEADER.size
    body_at = id_at + max(0, id_size)
    if body_at > at + size or id_size < -1:
        raise BadRequestError(f"a client id of {id_size} bytes in a request of {length}")
    if body_at > end:
        return None
    try:
        client_id = None if id_size < 0 else data[id_at:body_at].decode()
    except UnicodeDecodeError:
        raise BadRequestError("a client id that is no UTF-8") from None
    has_response = True
    if api_key == PRODUCE:
        acks = _read_acks(version, bytes(data[body_at:end]))
        if acks is None:
            if is_whole or end - body_at > _MAX_BEFORE_ACKS_BYTES:
                raise BadRequestError(f"produce v{version} has no acks where they belong")
            return None
        has_response = acks != 0
    return Start(Request(api_key, version, correlation_id, client_id, None), size, has_response)


def _is_request(data: bytes | bytearray, at: int, length: int) -> bool:
    """Whether a frame amid tokens of SASL is a request: the codec knows its API."""
    if length + PREFIX_BYTES < _HEADER.size:
        return False
    _, api_key, version, _, id_size = _HEADER.unpack_from(data, at)
    return is_known(api_key, version) and -1 <= id_size <= length


def _read_acks(version: int, data: bytes) -> int | None:
    """Read the acks of a produce, behind its client id; None if the bytes end before."""
    at = 0
    try:
        if version >= _PRODUCE_FLEXIBLE:
            count, at = read_varint(data, at)
            for _ in range(count):  # tagged fields of the header
                _, at = read_varint(data, at)
                size, at = read_varint(data, at)
                at += size
            size, at = read_varint(data, at)
            at += max(0, size - 1)
        elif version >= _PRODUCE_TRANSACTIONAL:
            at = 2 + max(0, *_SHORT.unpack_from(data, at))
        return int(*_SHORT.unpack_from(data, at))
    except (IndexError, struct.error):
        return None
