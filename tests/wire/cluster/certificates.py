"""Certificates of clients, and their verification."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_client_certificate(authority: Path, name: str, subject: str) -> Path:
    """Make a client's certificate, with its key, in one file.

    Args:
        authority: a certificate with its key, which signs it; the new one lies beside.
        name: of the file.
        subject: as openssl has it: "/O=Example/CN=ann".
    """
    folder = authority.parent
    request, key, certificate = (f"{name}.{kind}" for kind in ("csr", "key", "crt"))
    commands = [
        f"openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
        f"-keyout {key} -out {request} -subj",
        f"openssl x509 -req -days 2 -in {request} -CA {authority} -CAkey {authority} "
        f"-set_serial {len(subject)} -out {certificate}",
    ]
    for command, rest in zip(commands, ([subject], []), strict=True):
        subprocess.run([*command.split(), *rest], cwd=folder, check=True, capture_output=True)
    both = folder / f"{name}.pem"
    both.write_text((folder / key).read_text() + (folder / certificate).read_text())
    return both
