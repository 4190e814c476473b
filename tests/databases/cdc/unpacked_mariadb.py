"""The MariaDB of another Debian, unpacked in a folder of its own, beside the system's.

    PATH=$(python -m tests.databases.cdc.unpacked_mariadb build/mariadb trixie):$PATH pytest ...

Its programs are started by that Debian's own loader and libraries, so nothing is installed. The
MariaDB of the tests is the first one of the PATH.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_MIRROR = "http://deb.debian.org/debian"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGES = ("mariadb-server-core", "mariadb-client-core", "libc6", "libstdc++6")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_STARTED = ("usr/sbin/mariadbd", "usr/bin/my_print_defaults", "usr/bin/resolveip")


def unpack(folder: Path, suite: str = "trixie") -> Path:
    """Download and unpack, unless that was done; return the folder for the PATH.

    Raises:
        subprocess.CalledProcessError: the packages can't be had.
    """
    folder = folder.resolve()
    root, programs, marker = folder / "root", folder / "bin", folder / "unpacked"
    if not marker.exists():
        for package in _downloaded(folder, suite):
            subprocess.run(["dpkg", "-x", package, root], check=True)
        for name in _STARTED:
            (root / name).rename(root / f"{name}.own")
            _write_script(root / name, f'{_loaded(root, name)} "$@"')
        programs.mkdir(exist_ok=True)
        base = f"--basedir={root}/usr"
        _write_script(
            programs / "mariadb-install-db", f'{root}/usr/bin/mariadb-install-db "$@" {base}'
        )
        more = f"--lc-messages-dir={root}/usr/share/mysql --plugin-dir={root}/usr/lib/mysql/plugin"
        server = _loaded(root, "usr/sbin/mariadbd")
        _write_script(programs / "mariadbd", f'{server} "$@" {base} {more}')
        marker.touch()
    return programs


def _loaded(root: Path, name: str) -> str:
    libraries = root / _LIBRARIES
    return f"{libraries}/ld-linux-x86-64.so.2 --library-path {libraries} {root}/{name}.own"


def _write_script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\nexec {command}\n")
    path.chmod(0o755)


def _downloaded(folder: Path, suite: str) -> list[Path]:
    for name in ("lists/partial", "cache/archives/partial", "state"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    status = folder / "state" / "status"
    status.touch()
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {_MIRROR} {suite} main\n")
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
    subprocess.run([*apt, *install, *_PACKAGES], check=True, stdout=sys.stderr)
    return sorted((folder / "cache" / "archives").glob("*.deb"))


if __name__ == "__main__":
    print(unpack(Path(sys.argv[1]), *sys.argv[2:3]))
