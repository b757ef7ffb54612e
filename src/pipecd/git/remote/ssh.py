# SPDX-License-Identifier: Apache-2.0
"""How git reaches hosts over ssh: with which key, and how it knows that they are who they are."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

# The name of a socket may not be longer than about a hundred bytes, a hash in it included.
_LONGEST_SOCKET_DIRECTORY = 50
_CLOSE_SECONDS = 5


@dataclass(frozen=True)
class SshAccess:
    """What the piped configuration says about ssh."""

    key: bytes = field(default=b"", repr=False)
    host: str = ""
    host_name: str = ""
    config_file: str = ""


@contextmanager
def ssh_command(access: SshAccess, *, private: Path, known_hosts: Path) -> Generator[str]:
    """The command that git starts for ssh; `known_hosts` is where new hosts are remembered."""
    with _sockets(private) as sockets:
        config = _write_config(access, private, known_hosts=known_hosts, sockets=sockets)
        yield shlex.join(["ssh", "-F", str(config)])


@contextmanager
def _sockets(private: Path) -> Generator[Path]:
    """A directory for the connections that stay open between two questions."""
    if len(str(private)) <= _LONGEST_SOCKET_DIRECTORY:
        directory = private / "s"
        directory.mkdir(mode=0o700)
    else:
        directory = Path(tempfile.mkdtemp(prefix="piped-ssh-"))
    try:
        yield directory
    finally:
        for socket in directory.iterdir():
            _close(socket)
        shutil.rmtree(directory, ignore_errors=True)


def _close(socket: Path) -> None:
    # A connection that does not end when asked to ends by itself a minute later.
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            ["ssh", "-F", "none", "-o", f"ControlPath={socket}", "-O", "exit", "any"],
            capture_output=True,
            check=False,
            timeout=_CLOSE_SECONDS,
        )


def _write_config(access: SshAccess, private: Path, *, known_hosts: Path, sockets: Path) -> Path:
    """The first value that ssh finds counts, so what users wrote comes before what we prefer."""
    home = Path(os.environ.get("HOME") or str(private))
    own = Path(access.config_file) if access.config_file else home / ".ssh" / "config"
    lines: list[str] = []
    if access.key:
        host = access.host or "github.com"
        lines += [f"Host {host}", f"  HostName {access.host_name or host}", "  User git"]
        lines += ["Host *", f"  IdentityFile {quoted(str(_write_key(access, private)))}"]
        lines += ["  IdentitiesOnly yes"]
    lines += ["Host *", "  BatchMode yes"]
    for further in (own, Path("/etc/ssh/ssh_config")):
        if further.is_file():
            lines.append(f"  Include {quoted(str(further))}")
    known = (known_hosts, home / ".ssh" / "known_hosts", home / ".ssh" / "known_hosts2")
    lines += [
        "Host *",
        "  ConnectTimeout 15",
        "  ServerAliveInterval 15",
        # A host that nobody has named keeps the key that it showed first.
        "  StrictHostKeyChecking accept-new",
        f"  UserKnownHostsFile {' '.join(quoted(str(file)) for file in known)}",
        # One connection serves every question to a host, and ends soon after the last one.
        "  ControlMaster auto",
        f"  ControlPath {quoted(str(sockets / '%C'))}",
        "  ControlPersist 60",
    ]
    file = private / "ssh_config"
    file.write_text("\n".join(lines) + "\n")
    return file


def _write_key(access: SshAccess, private: Path) -> Path:
    key = private / "ssh-key"
    key.touch(mode=0o600)
    key.write_bytes(access.key.strip() + b"\n")
    return key


def quoted(text: str) -> str:
    """A text as one word in the files of ssh and git."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
