"""Kafka's schemas of its messages, compressed beside the recordings.

They are Apache Kafka's, under the Apache License 2.0 (schemas.NOTICE), without their comments and
descriptions. `make record` takes them from the jar of the newest recorded version.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

Schema = dict[str, Any]

_FILE = Path(__file__).parent / "schemas.json.xz"
_FOLDER = "common/message/"
_OTHERS = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
_LINE_COMMENT = re.compile(r"^\s*//.*$|(?<=[,\]}\"\s])//.*$", re.MULTILINE)


@cache
def load_schemas() -> Sequence[Schema]:
    """Return the schemas of all requests and responses, and of the consumers' own messages."""
    found: Sequence[Schema] = json.loads(lzma.decompress(_FILE.read_bytes()))
    return found


def store_schemas(jar: Path) -> None:
    """Take the schemas from a jar of Kafka's clients."""
    schemas = sorted(_schemas_of(jar), key=lambda schema: str(schema["name"]))
    text = json.dumps(schemas, separators=(",", ":"))
    _FILE.write_bytes(lzma.compress(text.encode(), preset=9))
    load_schemas.cache_clear()


def _schemas_of(jar: Path) -> Iterator[Schema]:
    with ZipFile(jar) as archive:
        for name in archive.namelist():
            if not (name.startswith(_FOLDER) and name.endswith(".json")):
                continue
            schema = json.loads(_LINE_COMMENT.sub("", archive.read(name).decode()))
            is_message = schema.get("type") in ("request", "response") or schema["name"] in _OTHERS
            if is_message and schema.get("validVersions", "none") != "none":
                yield _without_descriptions(schema)


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_descriptions(part) for key, part in schema.items() if key != "about"}
    if isinstance(schema, list):
        return [_without_descriptions(part) for part in schema]
    return schema


def has_schemas() -> bool:
    """Whether schemas are stored."""
    return _FILE.exists()
