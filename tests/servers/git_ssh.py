# SPDX-License-Identifier: Apache-2.0
"""Repositories over SSH: an sshd on a port of its own, with keys of its own."""

import getpass
import os
from collections.abc import Sequence
from pathlib import Path

from servers.programs import find
from servers.server import Server, run

# As root, sshd wants this directory, which its service would have made.
PRIVILEGE_SEPARATION = Path("/run/sshd")


class GitSsh(Server):
    """Lets the owner of one key in, and serves every repository that this user can read."""

    def find_program(self) -> str:
        return find("sshd")

    def prepare(self) -> None:
        super().prepare()
        self.key = self.data / "id"
        new_key(self.key)
        self.data.joinpath("authorized_keys").write_bytes(self.key.with_suffix(".pub").read_bytes())
        self.change_host_key()
        settings = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": self.data / "host",
            "AuthorizedKeysFile": self.data / "authorized_keys",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "PrintMotd": "no",
            "AcceptEnv": "GIT_PROTOCOL",
            "LogLevel": "VERBOSE",
        }
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        self.data.joinpath("sshd_config").write_text(text)
        if os.getuid() == 0:
            PRIVILEGE_SEPARATION.mkdir(exist_ok=True)

    def command(self) -> Sequence[str]:
        return [self.program, "-D", "-e", "-f", str(self.data / "sshd_config")]

    def is_up(self) -> bool:
        return self.answers()

    def url(self, repository: Path) -> str:
        """The remote of a repository in a directory of this machine."""
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{repository}"

    @property
    def private_key(self) -> str:
        """The key that is accepted."""
        return self.key.read_text()

    @property
    def known_hosts(self) -> str:
        """The entry of this server in `known_hosts`."""
        kind, key, *_ = self.data.joinpath("host.pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {kind} {key}\n"

    def change_host_key(self) -> None:
        """Becomes another host at its next start."""
        new_key(self.data / "host")

    def connections(self) -> int:
        """The number of accepted connections."""
        return self.directory.joinpath("log").read_text().count("Accepted publickey")


def new_key(file: Path) -> None:
    for old in (file, file.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", str(file))
