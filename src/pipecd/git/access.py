# SPDX-License-Identifier: Apache-2.0
"""How piped proves to Git hosts who it is, without showing it to anyone else on the machine.

Passwords travel in the environment of the git program, which other users cannot read, never in
its arguments. An ssh key becomes a private file in a directory that ends with piped.
"""

import base64
import os
import shutil
import ssl
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipecd.git.remote.address import http_host, read_address
from pipecd.git.remote.ssh import SshAccess, quoted, ssh_command

_KEPT_VARIABLES = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_NO_VERIFY")
_OWN_SSH = ("GIT_SSH", "GIT_SSH_COMMAND")


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
    def ssh(self) -> SshAccess:
        """The part that concerns ssh."""
        return SshAccess(self.ssh_key, self.ssh_host, self.ssh_host_name, self.ssh_config_file)

    @property
    def author(self) -> tuple[str, str]:
        """Name and address for commits that piped makes."""
        return self.username or "piped", self.email or "pipecd.dev@gmail.com"


class GitEnvironment:
    """The environment in which every git command of a piped runs.

    `hosts` are the servers that may hear the password: those that the configuration names, and
    not those that only a repository names, in its list of submodules.
    """

    def __init__(
        self, access: GitAccess, variables: Mapping[str, str], hosts: frozenset[str]
    ) -> None:
        self._access, self._variables, self._hosts = access, variables, hosts

    @property
    def author(self) -> tuple[str, str]:
        """Name and address for commits that piped makes."""
        return self._access.author

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The authorities that this machine trusts, read once for all servers."""
        return ssl.create_default_context()

    def of(self, remote: str = "", *, settings: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
        """Variables for one command; with a remote, also its address and its credentials."""
        pairs = [*_SETTINGS, *settings]
        if remote:
            pairs.append(("remote.origin.url", read_address(remote).url))
        if authorization := self.authorization(remote):
            # Bound to the host, so that a redirect elsewhere does not take the password along.
            key = f"http.{http_host(remote)}/.extraHeader"
            pairs.append((key, f"Authorization: {authorization}"))
        config = {"GIT_CONFIG_COUNT": str(len(pairs))}
        for index, (key, value) in enumerate(pairs):
            config[f"GIT_CONFIG_KEY_{index}"] = key
            config[f"GIT_CONFIG_VALUE_{index}"] = value
        return {**self._variables, **config}

    def authorization(self, remote: str) -> str:
        """What a server over HTTP is told about who asks."""
        address, host = read_address(remote), http_host(remote)
        if host and address.password:
            return _basic(address.username, address.password)
        if host in self._hosts and self._access.password:
            return _basic(self._access.username, self._access.password)
        return ""


def _basic(username: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


_SETTINGS = (
    ("core.hooksPath", "/dev/null"),
    ("gc.auto", "0"),
    # A further name for a file changes this time and nothing in the file.
    ("core.trustctime", "false"),
    ("http.lowSpeedLimit", "100"),
    ("http.lowSpeedTime", "30"),
    ("fetch.writeCommitGraph", "false"),
    ("advice.detachedHead", "false"),
    # Submodules are fetched by piped itself, and only those that are needed.
    ("fetch.recurseSubmodules", "false"),
    ("submodule.recurse", "false"),
    # Files of Git LFS are put in later, all at once, and shared.
    ("filter.lfs.process", ""),
    ("filter.lfs.smudge", ""),
    ("filter.lfs.required", "false"),
)


@contextmanager
def git_environment(
    access: GitAccess, *, directory: Path, remotes: Sequence[str] = (), owned: Sequence[Path] = ()
) -> Generator[GitEnvironment]:
    """Prepares the private files that git and ssh need, and removes them at the end.

    Below `directory`, what a killed piped left of them is removed first; the keys of hosts are
    remembered for the next start. `remotes` are the configured addresses, `owned` the directories
    that git shall trust although another user owns them.
    """
    private = directory / "private"
    shutil.rmtree(private, ignore_errors=True)
    private.mkdir(mode=0o700, parents=True)
    hosts = frozenset(http_host(remote) for remote in remotes) - {""}
    known = directory / "known_hosts"
    try:
        with ssh_command(access.ssh, private=private, known_hosts=known) as ssh:
            variables = _variables(private, owned)
            if access.ssh.key or not variables.keys() & set(_OWN_SSH):
                variables.pop("GIT_SSH", None)
                variables["GIT_SSH_COMMAND"] = ssh
            yield GitEnvironment(access, variables, hosts)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _variables(directory: Path, owned: Sequence[Path]) -> dict[str, str]:
    # Variables such as GIT_DIR of a surrounding git command must not lead ours astray.
    variables = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("GIT_") or key in _KEPT_VARIABLES
    }
    return variables | {
        "GIT_TERMINAL_PROMPT": "0",
        # Nobody is there to be asked, and an empty answer is asked for again and again.
        "GIT_ASKPASS": "false",
        "SSH_ASKPASS": "false",
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": str(_global_config(directory, owned)),
    }


def _global_config(directory: Path, owned: Sequence[Path]) -> Path:
    """The user's own settings, and trust in the repositories that piped is told to read.

    A local remote is read by a second git program that hears of its trust in no other way.
    """
    lines: list[str] = []
    for own in _own_configs():
        lines += ["[include]", f"\tpath = {quoted(str(own))}"]
    for path in owned:
        lines += ["[safe]", f"\tdirectory = {quoted(str(path))}"]
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
