# SPDX-License-Identifier: Apache-2.0
"""Credentials of piped for Git hosts, and the environment that passes them to the git program.

Passwords travel in the environment of the git program, which other users cannot read, never in
its arguments. An SSH key becomes a private file in a directory that is removed when piped ends.
"""

import base64
import os
import re
import shutil
import ssl
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipecd.git.remote import http_origin, parse_remote
from pipecd.git.ssh import SshCredentials, quote, ssh_command
from pipecd.program.atomic_write import write_private

_PRESERVED_VARIABLES = (
    "GIT_ALLOW_PROTOCOL",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSL_CAINFO",
    "GIT_SSL_NO_VERIFY",
)
# No transport that starts a program, whatever a repository names.
_TRANSPORTS = ("file", "git", "http", "https", "ssh")

_GIT_CONFIG = (
    ("core.hooksPath", "/dev/null"),
    ("gc.auto", "0"),
    # A further hard link changes this time and nothing in the file.
    ("core.trustctime", "false"),
    # Working copies depend on the repository only.
    ("core.autocrlf", "false"),
    ("core.attributesFile", "/dev/null"),
    ("http.lowSpeedLimit", "100"),
    ("http.lowSpeedTime", "30"),
    ("fetch.writeCommitGraph", "false"),
    ("advice.detachedHead", "false"),
    # Piped fetches submodules itself, and only those that are required.
    ("fetch.recurseSubmodules", "false"),
    ("submodule.recurse", "false"),
    # Files of Git LFS are added later, all at once, and shared.
    ("filter.lfs.process", ""),
    ("filter.lfs.smudge", ""),
    ("filter.lfs.required", "false"),
)


@dataclass(frozen=True)
class GitCredentials:
    """The `git` section of a piped configuration, decoded."""

    username: str = ""
    email: str = ""
    password: str = field(default="", repr=False)
    ssh_key: bytes = field(default=b"", repr=False)
    ssh_host: str = ""
    ssh_host_name: str = ""
    ssh_config_file: str = ""

    @property
    def ssh(self) -> SshCredentials:
        """The part that concerns SSH."""
        return SshCredentials(self.ssh_key, self.ssh_host, self.ssh_host_name, self.ssh_config_file)

    @property
    def author(self) -> tuple[str, str]:
        """Name and e-mail address for commits that piped creates."""
        return self.username or "piped", self.email or "pipecd.dev@gmail.com"


class GitEnvironment:
    """The environment in which every git command of a piped runs.

    `origins` are the HTTP servers that receive the configured password: those that the piped
    configuration names, not those that only a repository names in its .gitmodules.
    """

    def __init__(
        self,
        credentials: GitCredentials,
        base: Mapping[str, str],
        origins: frozenset[str],
        *,
        private: Path,
    ) -> None:
        self._credentials, self._base, self._origins = credentials, base, origins
        paths = list(private.rglob("*"))
        self._directories = (private, *(path for path in paths if path.is_dir()))
        self._files = {path: path.read_bytes() for path in paths if path.is_file()}

    def restore_files(self) -> bool:
        """Writes private files again that were removed or changed; returns whether any was."""
        is_damaged = False
        for directory in self._directories:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, content in self._files.items():
            try:
                is_intact = path.read_bytes() == content
            except OSError:
                is_intact = False
            if not is_intact:
                is_damaged = True
                write_private(path, content)
        return is_damaged

    @property
    def author(self) -> tuple[str, str]:
        """Name and e-mail address for commits that piped creates."""
        return self._credentials.author

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The certificate authorities that this machine trusts, loaded once for all servers."""
        return ssl.create_default_context()

    def variables(self, remote: str = "") -> dict[str, str]:
        """Returns the environment of a command; with a remote, also its URL and its credentials."""
        config = [*_GIT_CONFIG]
        if remote:
            config.append(("remote.origin.url", parse_remote(remote).url))
        if authorization := self.authorization(remote):
            # Bound to the origin, so that a redirect to another host drops the password.
            key = f"http.{http_origin(remote)}/.extraHeader"
            config.append((key, f"Authorization: {authorization}"))
        variables = {**self._base, "GIT_CONFIG_COUNT": str(len(config))}
        for index, (key, value) in enumerate(config):
            variables[f"GIT_CONFIG_KEY_{index}"] = key
            variables[f"GIT_CONFIG_VALUE_{index}"] = value
        return variables

    def authorization(self, remote: str) -> str:
        """Returns the Authorization header for an HTTP remote, or an empty string."""
        url, origin = parse_remote(remote), http_origin(remote)
        if origin and url.password:
            return _basic(url.username, url.password)
        if origin in self._origins and self._credentials.password:
            return _basic(self._credentials.username, self._credentials.password)
        return ""


def _basic(username: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


@contextmanager
def git_environment(
    credentials: GitCredentials,
    *,
    directory: Path,
    remotes: Sequence[str] = (),
    safe_directories: Sequence[Path] = (),
) -> Generator[GitEnvironment]:
    """Creates the private files that git and ssh need, and removes them at the end.

    Private files that a killed piped left below `directory` are removed first; host keys stay for
    the next start. `remotes` are the configured ones, `safe_directories` those that git trusts
    although another user owns them.
    """
    private = directory / "private"
    shutil.rmtree(private, ignore_errors=True)
    private.mkdir(mode=0o700, parents=True)
    origins = frozenset(http_origin(remote) for remote in remotes) - {""}
    known_hosts = directory / "known_hosts"
    try:
        with ssh_command(credentials.ssh, private=private, known_hosts=known_hosts) as ssh:
            # Variables of a surrounding git command, such as GIT_DIR, must not reach ours.
            base = {
                key: value
                for key, value in os.environ.items()
                if not key.startswith("GIT_") or key in _PRESERVED_VARIABLES
            }
            base = (
                {"GIT_ALLOW_PROTOCOL": ":".join(_transports(remotes))}
                | base
                | {
                    "GIT_TERMINAL_PROMPT": "0",
                    # Nobody can answer a prompt, and git would repeat it after an empty answer.
                    "GIT_ASKPASS": "false",
                    "SSH_ASKPASS": "false",
                    "LC_ALL": "C",
                    "GIT_CONFIG_GLOBAL": str(_write_global_config(private, safe_directories)),
                }
            )
            if credentials.ssh.key or not base.keys() & {"GIT_SSH", "GIT_SSH_COMMAND"}:
                base.pop("GIT_SSH", None)
                base["GIT_SSH_COMMAND"] = ssh
            yield GitEnvironment(credentials, base, origins, private=private)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _transports(remotes: Sequence[str]) -> list[str]:
    """Returns the allowed transports: the usual ones, and those that the operator's remotes use."""
    helpers = (re.match(r"([a-z0-9+-]+):(?=:|//)", remote) for remote in remotes)
    configured = {match[1].removeprefix("git+") for match in helpers if match}
    return sorted({*_TRANSPORTS, *configured})


def _write_global_config(directory: Path, safe_directories: Sequence[Path]) -> Path:
    """Includes the settings of the user and trusts the configured local repositories.

    For a local remote git starts a second process, which reads `safe.directory` only from files.
    """
    home, user_configs = os.environ.get("HOME"), list[Path]()
    if configured := os.environ.get("GIT_CONFIG_GLOBAL"):
        user_configs = [Path(configured)]
    elif home:
        xdg = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
        user_configs = [Path(xdg, "git", "config"), Path(home, ".gitconfig")]
    lines: list[str] = []
    for included in user_configs:
        lines += ["[include]", f"\tpath = {quote(str(included))}"]
    for path in safe_directories:
        lines += ["[safe]", f"\tdirectory = {quote(str(path))}"]
    file = directory / "gitconfig"
    file.write_text("\n".join(lines) + "\n")
    return file
