# SPDX-License-Identifier: Apache-2.0
"""Polls of a server over one HTTP connection, and the fallback to `git ls-remote`."""

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipecd.git.branch_poller import (
    HTTP_POLL_INTERVAL,
    LS_REMOTE_POLL_INTERVAL,
    SmartHttpClient,
    UnexpectedResponse,
    branch_poller,
)
from pipecd.git.credentials import GitCredentials, git_environment
from pipecd.model.errors import Denied, Unavailable, UserMistake
from servers.git_http import GitHttp
from servers.origin import OpenMirror, Origin
from servers.web import Answer, Request, WebServer


async def test_a_poll_is_one_request_over_one_connection(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp
) -> None:
    async with open_mirror(git_http.url("origin/.git")) as mirror:
        first = await mirror.update()
        git_http.requests.clear()
        for _ in range(3):
            assert await mirror.update() is first
        assert git_http.requests == ["/origin/.git/git-upload-pack"] * 3
        pushed = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == pushed
        assert mirror.poll_interval == pytest.approx(HTTP_POLL_INTERVAL, rel=0.11)


async def test_a_server_of_protocol_0_is_supported(origin: Origin, git_http: GitHttp) -> None:
    origin.git("config", "protocol.version", "0")
    origin.git("branch", "other")
    refs = SmartHttpClient(git_http.url("origin/.git"), "refs/heads/main")
    older = SmartHttpClient(git_http.url("origin/.git"), "refs/heads/none")
    try:
        # The client requests protocol 2; a server without it lists every ref.
        refs._connection().headers.pop("Git-Protocol")  # pyright: ignore[reportPrivateUsage]
        assert await refs.ref_hash() == origin.git("rev-parse", "main")
        with pytest.raises(UnexpectedResponse):
            await older.ref_hash()
    finally:
        await refs.close()
        await older.close()


async def test_an_unavailable_server_is_reported_and_recovers(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp
) -> None:
    async with open_mirror(git_http.url("origin/.git")) as mirror:
        await mirror.update()
        git_http.answers_with = 503
        with pytest.raises(Unavailable, match="503"):
            await mirror.update()
        git_http.answers_with = 200
        pushed = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == pushed


async def test_revoked_credentials_are_reported(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp
) -> None:
    git_http.require("ann", "old")
    credentials = GitCredentials(username="ann", password="old")
    async with open_mirror(git_http.url("origin/.git"), credentials=credentials) as mirror:
        await mirror.update()
        git_http.require("ann", "new")
        with pytest.raises(Denied, match="access was denied"):
            await mirror.update()


async def test_a_deleted_branch_and_an_empty_repository_are_reported(
    open_mirror: OpenMirror, origin: Origin, new_origin: Any, git_http: GitHttp
) -> None:
    async with open_mirror(git_http.url("origin/.git")) as mirror:
        await mirror.update()
        origin.git("branch", "-m", "main", "other")
        with pytest.raises(UserMistake, match="the branch does not exist"):
            await mirror.update()
    new_origin("empty")
    async with open_mirror(git_http.url("empty/.git")) as mirror:
        with pytest.raises(UserMistake, match="the branch does not exist"):
            await mirror.update()


async def test_a_renamed_repository_is_reported(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp, tmp_path: Path
) -> None:
    async with open_mirror(git_http.url("origin/.git")) as mirror:
        head = await mirror.update()
        origin.path.rename(tmp_path / "renamed")
        with pytest.raises(UserMistake, match="the repository was not found"):
            await mirror.update()
        # The fetched commits stay usable.
        assert await mirror.objects.read_file(head.hash, "README") == b"hello\n"


class Redirects(WebServer):
    """Redirects every request and records its Authorization header."""

    def __init__(self) -> None:
        self.target = ""
        self.received: list[str] = []
        super().__init__()

    def answer(self, request: Request) -> Answer:
        self.received.append(request.authorization)
        if not self.target:
            return Answer(404)
        return Answer(301, headers={"Location": f"{self.target}{request.target}"})


@pytest.fixture
def redirects() -> Iterator[Redirects]:
    with closing(Redirects()) as server:
        yield server


async def test_redirects_are_followed(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp, redirects: Redirects
) -> None:
    redirects.target = git_http.address
    async with open_mirror(f"{redirects.address}/origin/.git") as mirror:
        await mirror.update()
        pushed = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == pushed


async def test_a_redirect_to_another_host_drops_the_password(
    open_mirror: OpenMirror, git_http: GitHttp, redirects: Redirects
) -> None:
    elsewhere = f"http://localhost:{redirects.port}"
    credentials = GitCredentials(username="ann", password="s3cret")
    with git_environment(
        credentials, directory=git_http.root / "p", remotes=[git_http.url("x")]
    ) as env:
        assert env.authorization(git_http.url("y"))
        assert not env.authorization(f"{elsewhere}/x")
        refs = SmartHttpClient(
            f"{redirects.address}/x",
            "refs/heads/main",
            authorization=env.authorization(git_http.url("x")),
        )
        redirects.target = elsewhere
        with pytest.raises(UnexpectedResponse):
            await refs.ref_hash()
        await refs.close()
    assert redirects.received[0].startswith("Basic ")
    assert set(redirects.received[1:]) == {""}


async def test_remotes_that_need_git_settings_fall_back_to_ls_remote(
    origin: Origin, git_http: GitHttp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "gitconfig"
    own.write_text(f'[url "{git_http.address}/"]\n\tinsteadOf = http://127.0.0.1:9/\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))
    with git_environment(GitCredentials(), directory=tmp_path / "p") as environment:
        branch = branch_poller(
            "http://127.0.0.1:9/origin/.git", "main", repository="web", environment=environment
        )
        for _ in range(4):
            assert await branch.poll() == origin.git("rev-parse", "main")
        assert branch.interval == pytest.approx(LS_REMOTE_POLL_INTERVAL, rel=0.11)
        await branch.close()


async def test_an_untrusted_certificate_is_reported(
    open_mirror: OpenMirror, origin: Origin, git_https: GitHttp
) -> None:
    async with open_mirror(git_https.url("origin/.git")) as mirror:
        with pytest.raises(Unavailable, match="the certificate of the host is not trusted"):
            await mirror.update()


async def test_an_authority_of_this_machine_is_trusted(
    open_mirror: OpenMirror,
    origin: Origin,
    git_https: GitHttp,
    certificate: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIT_SSL_CAINFO", certificate[0])
    monkeypatch.setenv(ssl.get_default_verify_paths().openssl_cafile_env, certificate[0])
    async with open_mirror(git_https.url("origin/.git")) as mirror:
        await mirror.update()
        git_https.requests.clear()
        await mirror.update()
        assert git_https.requests == ["/origin/.git/git-upload-pack"]


async def test_passwords_never_appear_in_arguments(
    open_mirror: OpenMirror,
    origin: Origin,
    git_http: GitHttp,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Git shows addresses to its helpers in their arguments, which every user can read."""
    trace = tmp_path / "trace"
    monkeypatch.setattr("pipecd.git.credentials._PRESERVED_VARIABLES", ("GIT_TRACE",))
    monkeypatch.setenv("GIT_TRACE", str(trace))
    git_http.require("ann", "t0ken")
    url = git_http.url("origin/.git").replace("http://", "http://ann:t0ken@")
    async with open_mirror(url) as mirror:
        await mirror.update()
        pushed = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == pushed
    assert "remote-http" in trace.read_text()
    assert "t0ken" not in trace.read_text()
    assert "YW5uOnQwa2Vu" not in trace.read_text()
