"""Spark's classes as an archive that Java reads in one piece, instead of from hundreds of jars.

Java calls it class data sharing. The archive is made once per machine, by ``purgatory prepare``,
and is for one Java and one Spark: another Java, or other jars, and Java passes over it.

Source: JEP 350, "Dynamic CDS Archives".
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pyspark

from purgatory.analysis.spark.java import cache_folder

# What Java has to say of archives goes where its other words go, not between ours.
_LOG = "-Xlog:disable -Xlog:all=warning:stderr"


def archive_path(java_home: Path, environment: Mapping[str, str]) -> Path:
    """Return where the archive for a Java is, or would be.

    Args:
        java_home: of the Java.
        environment: variables as in `os.environ`; XDG_CACHE_HOME is read.
    """
    of = sha256(f"{java_home}\n{pyspark.__file__}".encode()).hexdigest()[:12]
    return cache_folder(environment) / f"spark-{pyspark.__version__}-{of}.jsa"


def use(archive: Path) -> str:
    """Return Java's options to use an archive: none if it isn't there."""
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto {_LOG}' if archive.exists() else ""


def make(archive: Path) -> str:
    """Return Java's options to make an archive when it exits, of the classes that it used."""
    return f'"-XX:ArchiveClassesAtExit={archive}" {_LOG}'
