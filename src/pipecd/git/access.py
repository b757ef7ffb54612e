# SPDX-License-Identifier: Apache-2.0
"""How piped proves to Git hosts who it is, without showing it to anyone else on the machine.

Passwords travel in the environment of the git program, which other users cannot read, never in
its arguments. An ssh key becomes a private file in a directory that ends with piped.
"""

import base64
import os
import shlex
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_KEPT_VARIABLES = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_CONFIG_GLOBAL")


@dataclass(frozen=True)
class GitAccess:
    """The `git` section of a piped configuration, decoded."""

    username: str = ""
    email: str = ""
    password: str = field(default="", repr=False)
    ssh_key: bytes = field(default=b"", repr=False)
    ssh_host: str = ""
    ssh_host_name: str = ""
    ssh_config_file: str = ""

    @property
    def author(self) -> tuple[str, str]:
        """Name and address for commits that piped makes."""
        return self.username or "piped", self.email or "pipecd.dev@gmail.com"


class GitEnvironment:
    """The environment in which every git command of a piped runs."""

    def __init__(self, access: GitAccess, variables: Mapping[str, str]) -> None:
        self._access, self._variables = access, variables

    def of(self, remote: str = "", *, settings: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
        """Variables for one command; with a remote, also its address and its credentials."""
        pairs = [*_SETTINGS, *settings]
        if remote:
            pairs.append(("remote.origin.url", remote))
            pairs.extend(self._credentials(remote))
        config = {"GIT_CONFIG_COUNT": str(len(pairs))}
        for index, (key, value) in enumerate(pairs):
            config[f"GIT_CONFIG_KEY_{index}"] = key
            config[f"GIT_CONFIG_VALUE_{index}"] = value
        return {**self._variables, **config}

    def _credentials(self, remote: str) -> Iterator[tuple[str, str]]:
        url = urlsplit(remote)
        if url.scheme not in ("http", "https") or not self._access.password:
            return
        pair = f"{self._access.username}:{self._access.password}".encode()
        host = url.netloc.rpartition("@")[2]
        # Bound to the host, so that a redirect elsewhere does not take the password along.
        yield (
            f"http.{url.scheme}://{host}/.extraHeader",
            f"Authorization: Basic {base64.b64encode(pair).decode()}",
        )


_SETTINGS = (
    ("core.hooksPath", "/dev/null"),
    ("gc.autoDetach", "false"),
    # A running deployment may need a commit that a force push has cut off.
    ("gc.pruneExpire", "never"),
    ("http.lowSpeedLimit", "100"),
    ("http.lowSpeedTime", "30"),
    ("fetch.writeCommitGraph", "false"),
    ("advice.detachedHead", "false"),
)


@contextmanager
def git_environment(
    access: GitAccess, *, directory: Path, owned: Sequence[Path] = ()
) -> Generator[GitEnvironment]:
    """Prepares the private files that git and ssh need, and removes them at the end.

    `directory` is for these files alone; what a killed piped left in it is removed first. `owned`
    are the directories that git shall trust although another user owns them.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)
    try:
        yield GitEnvironment(access, _variables(access, directory, owned))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _variables(access: GitAccess, directory: Path, owned: Sequence[Path]) -> dict[str, str]:
    # Variables such as GIT_DIR of a surrounding git command must not lead ours astray.
    variables = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("GIT_") or key in _KEPT_VARIABLES
    }
    variables |= {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "SSH_ASKPASS": "true",
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": str(_global_config(directory, owned)),
    }
    if access.ssh_key:
        variables["GIT_SSH_COMMAND"] = shlex.join(
            ["ssh", "-F", str(_ssh_config(access, directory))]
        )
        variables.pop("GIT_SSH", None)
    return variables


def _global_config(directory: Path, owned: Sequence[Path]) -> Path:
    """The user's own settings, and trust in the repositories that piped is told to read.

    A local remote is read by a second git program that hears of its trust in no other way.
    """
    lines: list[str] = []
    for own in _own_configs():
        lines += ["[include]", f"\tpath = {_quoted(str(own))}"]
    for path in owned:
        lines += ["[safe]", f"\tdirectory = {_quoted(str(path))}"]
    file = directory / "gitconfig"
    file.write_text("\n".join(lines) + "\n")
    return file


def _own_configs() -> list[Path]:
    if chosen := os.environ.get("GIT_CONFIG_GLOBAL"):
        return [Path(chosen)]
    home = os.environ.get("HOME")
    if not home:
        return []
    settings = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    return [Path(settings, "git", "config"), Path(home, ".gitconfig")]


def _ssh_config(access: GitAccess, directory: Path) -> Path:
    """Settings for ssh: the key, no questions, hosts that keep the key they first showed."""
    home = Path(os.environ.get("HOME") or str(directory))
    own = Path(access.ssh_config_file) if access.ssh_config_file else home / ".ssh" / "config"
    known = home / ".ssh" / "known_hosts"
    accepted = known if known.parent.is_dir() else directory / "known_hosts"
    key = directory / "ssh-key"
    key.touch(mode=0o600)
    key.write_bytes(access.ssh_key.strip() + b"\n")
    host = access.ssh_host or "github.com"
    lines = [
        f"Host {host}",
        f"  HostName {access.ssh_host_name or host}",
        "  User git",
        "Host *",
        f"  IdentityFile {_quoted(str(key))}",
        "  IdentitiesOnly yes",
        "  BatchMode yes",
        "  ConnectTimeout 15",
        "  ServerAliveInterval 15",
        "  StrictHostKeyChecking accept-new",
        f"  UserKnownHostsFile {_quoted(str(accepted))}",
    ]
    for further in (own, Path("/etc/ssh/ssh_config")):
        if further.is_file():
            lines.append(f"  Include {_quoted(str(further))}")
    file = directory / "ssh_config"
    file.write_text("\n".join(lines) + "\n")
    return file


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
