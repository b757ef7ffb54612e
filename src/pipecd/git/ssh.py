# SPDX-License-Identifier: Apache-2.0
"""The ssh command and configuration with which git connects to SSH remotes."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

# The path of a socket may not be longer than about a hundred bytes, a hash in it included.
_MAX_SOCKET_DIRECTORY_LENGTH = 50
_CLOSE_TIMEOUT = 5


@dataclass(frozen=True)
class SshCredentials:
    """The SSH part of the `git` section of a piped configuration."""

    key: bytes = field(default=b"", repr=False)
    host: str = ""
    host_name: str = ""
    config_file: str = ""


@contextmanager
def ssh_command(credentials: SshCredentials, *, private: Path, known_hosts: Path) -> Generator[str]:
    """The value of GIT_SSH_COMMAND; keys of new hosts are added to the file `known_hosts`."""
    with _control_sockets(private) as sockets:
        config = _write_config(credentials, private, known_hosts=known_hosts, sockets=sockets)
        yield shlex.join(["ssh", "-F", str(config)])


@contextmanager
def _control_sockets(private: Path) -> Generator[Path]:
    """A directory for the control sockets of connections that stay open between commands."""
    if len(str(private)) <= _MAX_SOCKET_DIRECTORY_LENGTH:
        directory = private / "s"
        directory.mkdir(mode=0o700)
    else:
        directory = Path(tempfile.mkdtemp(prefix="piped-ssh-"))
    try:
        yield directory
    finally:
        for socket in directory.iterdir():
            # A connection that does not close now closes by itself a minute later.
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    ["ssh", "-F", "none", "-o", f"ControlPath={socket}", "-O", "exit", "any"],
                    capture_output=True,
                    check=False,
                    timeout=_CLOSE_TIMEOUT,
                )
        shutil.rmtree(directory, ignore_errors=True)


def _write_config(
    credentials: SshCredentials, private: Path, *, known_hosts: Path, sockets: Path
) -> Path:
    """Writes the configuration of ssh and returns its path.

    The first value that ssh reads counts, so the user's settings come before our defaults.
    """
    home = Path(os.environ.get("HOME") or str(private))
    user_config = credentials.config_file or home / ".ssh" / "config"
    lines: list[str] = []
    if credentials.key:
        key = private / "ssh-key"
        key.touch(mode=0o600)
        key.write_bytes(credentials.key.strip() + b"\n")
        host = credentials.host or "github.com"
        lines += [f"Host {host}", f"  HostName {credentials.host_name or host}", "  User git"]
        lines += ["Host *", f"  IdentityFile {quote(str(key))}", "  IdentitiesOnly yes"]
    lines += ["Host *", "  BatchMode yes"]
    for included in (Path(user_config), Path("/etc/ssh/ssh_config")):
        if included.is_file():
            lines.append(f"  Include {quote(str(included))}")
    hosts_files = (known_hosts, home / ".ssh" / "known_hosts", home / ".ssh" / "known_hosts2")
    lines += [
        "Host *",
        "  ConnectTimeout 15",
        "  ServerAliveInterval 15",
        # Trust on first use: later connections must show the same host key.
        "  StrictHostKeyChecking accept-new",
        f"  UserKnownHostsFile {' '.join(quote(str(file)) for file in hosts_files)}",
        # Commands to one host share a connection, which closes a minute after the last one.
        "  ControlMaster auto",
        f"  ControlPath {quote(str(sockets / '%C'))}",
        "  ControlPersist 60",
    ]
    file = private / "ssh_config"
    file.write_text("\n".join(lines) + "\n")
    return file


def quote(text: str) -> str:
    """Quotes a text as one word for the configuration files of ssh and git."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
