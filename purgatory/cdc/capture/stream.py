"""The source's binlog as events, by mysql-replication, with what that library reads wrongly mended.

* Whether events have a checksum is said by each file's format description: the setting may have
  changed since. The library asks for the present setting once, so that a file from before a switch
  would lose the last four bytes of each event. Here, every event gets a checksum, which is
  verified where the source wrote one.
* A statement's bytes are kept: the library decodes them as UTF-8. Unknown status variables are
  passed over: those of the session's `sql_mode` and character set come first.
* Events that nobody here knows stop the reader, unless the source marked them as ignorable.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import pymysql
from pymysql.protocol import MysqlPacket
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import (
    BinLogEvent,
    FormatDescriptionEvent,
    HeartbeatLogEvent,
    NotImplementedEvent,
    RotateEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    PartialUpdateRowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from purgatory.cdc.capture.errors import CaptureError, UnsupportedChangeError, source_error
from purgatory.cdc.capture.position import Position
from purgatory.cdc.capture.source import SourceAddress, SourceConnection, error_text, is_mariadb

QUERY, EXECUTE_LOAD = 0x02, 0x12
FORMAT_DESCRIPTION = 0x0F
_LOADS = {0x09, 0x0B, 0x11}
"""Parts of a LOAD DATA that was logged as a statement."""
_INCIDENT = 0x1A
_COMPRESSED = {40, 165, 166, 167, 168, 169, 170, 171}
"""Types of compressed events in MySQL and MariaDB."""
_WITHOUT_CHANGES = {
    0x03, 0x05, 0x0D, 0x0E, FORMAT_DESCRIPTION, 0x1C, 0x1D, 0x21, 0x22, 0x23, 0x24, 0x25, 0x29,
    0x2A, 160, 161, 162, 163, 164,
}  # fmt: skip
"""Stop, variables of statements, format description, ignorable, GTIDs, group replication's,
heartbeat, annotations, checkpoints, encryption (the source sends its events decrypted)."""
_IGNORABLE_FLAG = 0x80
_THREAD_SPECIFIC_FLAG = 0x04
_SUPPRESS_USE_FLAG = 0x08
_CHECKSUM_BYTES = 4
_CANNOT_SEND = 1236


class ConnectionLostError(Exception):
    """The connection to the source was lost."""


class DamagedEventError(UnsupportedChangeError):
    """An event is not as the source wrote it."""


class Connection(SourceConnection):
    """A connection whose binlog events all have a checksum, and that raises `ConnectionLostError`.

    The library would reconnect by itself, within a transaction, with descriptions of tables that a
    restarted server may have renumbered.
    """

    def __init__(self, *, db: str | None = None, **settings: Any) -> None:
        self._has_checksums: bool | None = None
        # The library passes ``db``, of which PyMySQL warns.
        super().__init__(**settings, **({} if db is None else {"database": db}))

    def begin_events(self) -> None:
        """Say that the packets from here on are events; the first ones have checksums."""
        self._has_checksums = True

    def _read_packet(self, *arguments: Any) -> Any:
        try:
            packet = super()._read_packet(*arguments)
        except pymysql.OperationalError as error:
            if error.args and error.args[0] in (2006, 2013):
                raise ConnectionLostError(str(error.args[-1])) from None
            raise
        if self._has_checksums is None or not packet.is_ok_packet():
            return packet
        return self._with_checksum(packet)

    def _with_checksum(self, packet: Any) -> Any:
        data: bytes = packet._data
        if data[5] == FORMAT_DESCRIPTION:
            # It has room for a checksum even if the other events have none.
            self._has_checksums = data[-_CHECKSUM_BYTES - 1] == 1
        elif self._has_checksums:
            given = int.from_bytes(data[-_CHECKSUM_BYTES:], "little")
            if zlib.crc32(memoryview(data)[1:-_CHECKSUM_BYTES]) != given:
                raise DamagedEventError(
                    "the event behind it has a wrong checksum: the source's binlog is damaged; "
                    "begin a new topic with --snapshot"
                )
        else:
            size = int.from_bytes(data[10:14], "little") + _CHECKSUM_BYTES
            sized = data[:10] + size.to_bytes(4, "little") + data[14:]
            return MysqlPacket(sized + bytes(_CHECKSUM_BYTES), self.encoding)
        return packet


class StatementEvent(BinLogEvent):  # type: ignore[misc]
    """A statement, also one that loads a file (EXECUTE_LOAD_QUERY).

    Attributes:
        thread: its session's number.
        schema: its session's default database.
        character_set: the number of a collation of its session's character_set_client; None for
            statements that the server itself wrote.
        alter_phase: of an ALTER TABLE in two phases: "start", "commit" or "rollback"; else "".
        is_thread_specific: whether it used a temporary table, or the session's number.
        loads_file: whether it loads a file.
        is_mysql: whether the server is MySQL, and not MariaDB.
        is_servers: whether a statement that deletes rows is the server's own, and of no session.
    """

    def __init__(
        self, packet: Any, size: int, table_map: Any, connection: Any, **settings: Any
    ) -> None:
        super().__init__(packet, size, table_map, connection, **settings)
        data: bytes = packet.read(size)
        self.is_mysql = not is_mariadb(connection)
        self.is_thread_specific = bool(packet.flags & _THREAD_SPECIFIC_FLAG)
        self.loads_file = packet.event_type == EXECUTE_LOAD
        self.thread = int.from_bytes(data[0:4], "little")
        schema_length = data[8]
        self.error_code = int.from_bytes(data[9:11], "little")
        variables_length = int.from_bytes(data[11:13], "little")
        header_length = self._declared_post_header_len(26 if self.loads_file else 13)
        end = header_length + variables_length
        self.sql_mode = 0
        self.character_set: int | None = None
        self.alter_phase = ""
        self._names_databases = False
        self._read_variables(data[header_length:end])
        # A session's have the names of their databases (MySQL), or obey its default one (MariaDB).
        self.is_servers = (
            not self._names_databases if self.is_mysql else bool(packet.flags & _SUPPRESS_USE_FLAG)
        )
        self.schema = data[end : end + schema_length]
        self.raw_query = data[end + schema_length + 1 :]

    def _read_variables(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            code = data[at]
            at += 1
            match code:
                case 0x01:
                    self.sql_mode = int.from_bytes(data[at : at + 8], "little")
                case 0x0C:
                    self._names_databases = True
                case 0x04:
                    self.character_set = int.from_bytes(data[at : at + 2], "little")
                case 130:
                    flags = data[at]
                    self.alter_phase = (
                        "start" if flags & 2 else "commit" if flags & 4
                        else "rollback" if flags & 8 else ""
                    )  # fmt: skip
                    at += 10 if flags & 12 else 2
                    continue
            length = _VARIABLE_BYTES.get(code)
            if length is None:
                length = _variable_length(code, data[at:])
            if length is None:
                return
            at += length


_VARIABLE_BYTES = {
    0x00: 4, 0x01: 8, 0x03: 4, 0x04: 6, 0x07: 2, 0x08: 2, 0x09: 8, 0x0A: 4, 0x0D: 3, 0x10: 1,
    0x11: 8, 0x12: 2, 0x13: 1, 0x14: 1, 128: 3, 129: 8,
}  # fmt: skip


def _variable_length(code: int, data: bytes) -> int | None:
    """The length of a status variable that says itself how long it is; None if it is unknown."""
    match code:
        case 0x02:
            return data[0] + 2
        case 0x05 | 0x06:
            return data[0] + 1
        case 0x0B:
            user = data[0] + 1
            return user + data[user] + 1
        case 0x0C:
            if data[0] == 254:
                return 1
            end = 1
            for _ in range(data[0]):
                end = data.index(0, end) + 1
            return end
        case 131:
            return 1 + 4 * data[0]
    return None


class BinlogStream(BinLogStreamReader):  # type: ignore[misc]
    """The events behind a position.

    Args:
        once: stop at the end of the binlog.
        heartbeat_s: how often the source says that there is nothing new.
        only: the classes of the events; by default, all that may change something.
    """

    def __init__(
        self,
        address: SourceAddress,
        start: Position,
        *,
        server_id: int,
        once: bool,
        heartbeat_s: float | None = None,
        only: Iterable[type] | None = None,
    ) -> None:
        event_classes = BinLogPacketWrapper._BinLogPacketWrapper__event_map
        event_classes.update({QUERY: StatementEvent, EXECUTE_LOAD: StatementEvent})
        event_classes.update(dict.fromkeys(_LOADS, NotImplementedEvent))
        super().__init__(
            connection_settings=address.connection_settings(),
            server_id=server_id,
            log_file=start.file,
            log_pos=start.offset,
            resume_stream=True,
            blocking=not once,
            slave_heartbeat=heartbeat_s,
            pymysql_wrapper=Connection,
            enable_logging=False,
            filter_non_implemented_events=False,
            only_events=list(only or _EVENTS),
        )

    def _BinLogStreamReader__checksum_enabled(self) -> bool:  # noqa: N802 - the library's name
        return True

    def _register_slave(self) -> None:
        """Called by the library before it asks for events."""
        super()._register_slave()
        with self._stream_connection.cursor() as cursor:
            # Not the present setting, as the library has it: the files decide.
            cursor.execute(
                "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'"
            )
        self._stream_connection.begin_events()

    @property
    def position(self) -> Position:
        """The end of the last event."""
        return Position(self.log_file, self.log_pos)


def file_origin(event: FormatDescriptionEvent) -> str:
    """Which server wrote a binlog file, and when it was made, by the file's first event."""
    return f"{event.packet.server_id}@{event.timestamp}"


def binlog_error(address: SourceAddress, position: Position, error: BaseException) -> CaptureError:
    """The `CaptureError` for a binlog that the source doesn't send from a position."""
    message = f"the binlog of {address} can't be read from {position}: {error_text(error)}"
    if is_refused(error):
        # The file is gone, or it is another one of the same name.
        message += "; begin a new topic with --snapshot"
    return source_error(message, error)


def is_refused(error: BaseException) -> bool:
    """Whether the source can't send from the position, permanently."""
    return isinstance(error, pymysql.OperationalError) and error.args[0] == _CANNOT_SEND


def read_origin(address: SourceAddress, position: Position, server_id: int) -> str:
    """The origin of the file at a position.

    Raises:
        CaptureError: it can't be read.
    """
    only = [FormatDescriptionEvent]
    stream = BinlogStream(address, position, server_id=server_id, once=True, only=only)
    try:
        event = next(iter(stream), None)
    except (pymysql.Error, ConnectionLostError, OSError) as error:
        raise binlog_error(address, position, error) from None
    finally:
        stream.close()
    if event is None:
        raise CaptureError(f"the binlog of {address} has no beginning at {position}")
    return file_origin(event)


_EVENTS = [
    DeleteRowsEvent,
    FormatDescriptionEvent,
    HeartbeatLogEvent,
    NotImplementedEvent,
    PartialUpdateRowsEvent,
    RotateEvent,
    StatementEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
    XAPrepareEvent,
    XidEvent,
]


def unreadable(event: Any) -> str | None:
    """Why a `NotImplementedEvent` stops the capture; None if it changes nothing."""
    kind: int = event.event_type
    if kind in _WITHOUT_CHANGES or kind in _LOADS:
        return None
    if kind == _INCIDENT:
        return "the source lost changes (an INCIDENT event): begin a new topic with --snapshot"
    if kind in _COMPRESSED:
        return "compressed events can't be read: switch that off"
    if event.packet.flags & _IGNORABLE_FLAG:
        return None
    return f"an event of the unknown type {kind}: begin a new topic with --snapshot"
