# SPDX-License-Identifier: Apache-2.0
"""Links and identities derived from Git remotes."""

import pytest

from pipecd.model.errors import UserMistake
from pipecd.model.giturl import commit_page, commit_url, directory_url, remote_identity

GITHUB = "https://github.com/org/repo"


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        pytest.param("git@github.com:org/repo.git", GITHUB, id="the short form"),
        pytest.param("github.com:org/repo", GITHUB, id="the short form without user and suffix"),
        pytest.param("ssh://git@github.com/org/repo.git", GITHUB, id="ssh"),
        pytest.param("ssh://git@host:2222/org/repo.git", "https://host:2222/org/repo", id="a port"),
        pytest.param("https://github.com/org/repo.git", GITHUB, id="https"),
        pytest.param("https://github.com/org/repo/", GITHUB, id="a slash at the end"),
        pytest.param("http://host:8080/a/b/c.git", "http://host:8080/a/b/c", id="http stays http"),
        pytest.param("https://user:token@github.com/org/repo", GITHUB, id="no token in the link"),
        pytest.param("https://host/org/a%20b.git", "https://host/org/a b", id="an escaped path"),
        pytest.param("git+ssh://host/org/repo", "git+ssh://host/org/repo", id="other transports"),
        pytest.param("file:///srv/git/repo.git", "file:///srv/git/repo", id="a local directory"),
        pytest.param("my-host.example.com:repo.git", "https://my-host.example.com/repo", id="dash"),
    ],
)
def test_pages_of_a_remote(remote: str, page: str) -> None:
    assert commit_url(remote, "c0ffee") == f"{page}/commit/c0ffee"
    assert directory_url(remote, "main", "apps/web") == f"{page}/tree/main/apps/web"


def test_bitbucket_uses_words_of_its_own() -> None:
    remote = "git@bitbucket.org:org/repo.git"
    assert commit_url(remote, "c") == "https://bitbucket.org/org/repo/commits/c"
    assert directory_url(remote, "b", "/d/") == "https://bitbucket.org/org/repo/src/b/d"


@pytest.mark.parametrize("remote", ["", "nonsense", "/srv/git/repo", "https://host:x/repo"])
def test_a_remote_that_cannot_be_read_is_reported(remote: str) -> None:
    with pytest.raises(UserMistake, match="is not a Git remote"):
        commit_url(remote, "c")


def test_a_directory_needs_a_branch() -> None:
    with pytest.raises(UserMistake, match="no branch is known"):
        directory_url("git@github.com:org/repo.git", "", "apps/web")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("git@github.com:org/repo.git", "https://github.com/org/repo", id="ssh, https"),
        pytest.param("https://u:t@GitHub.com/Org/Repo.git/", GITHUB, id="capitals and a token"),
        pytest.param("ssh://git@ssh.github.com:443/org/repo.git", GITHUB, id="ssh by the port 443"),
        pytest.param("org-1@github.com:org/repo", GITHUB, id="a user of an enterprise"),
        pytest.param(
            "ssh://git@git.corp.example:7999/shop/site.git",
            "https://git.corp.example/scm/SHOP/site.git",
            id="the two forms of Bitbucket Data Center",
        ),
        pytest.param(
            "https://git.corp.example/bitbucket/scm/~ann/site.git",
            "ssh://git@git.corp.example:7999/~ann/site.git",
            id="Bitbucket Data Center below a path",
        ),
        pytest.param("git@work:org/repo.git", GITHUB, id="a nickname of the SSH configuration"),
        pytest.param("http://gitea:3000/org/repo", "https://git.x.example/org/repo", id="inside"),
        pytest.param("file:///srv/git/repo.git", "/srv/git/repo", id="a directory"),
    ],
)
def test_two_remotes_of_one_repository(one: str, other: str) -> None:
    assert remote_identity(one).is_same(remote_identity(other))
    assert remote_identity(other).is_same(remote_identity(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("git@github.com:org/repo", "git@github.com:org/repo2", id="another name"),
        pytest.param("git@github.com:org/repo", "git@gitlab.com:org/repo", id="another host"),
        pytest.param("git@github.com:org/repo", "git@github.com:repo", id="another owner"),
        pytest.param("", "", id="nothing is no repository"),
    ],
)
def test_remotes_of_two_repositories(one: str, other: str) -> None:
    assert not remote_identity(one).is_same(remote_identity(other))


def test_a_commit_without_a_page_is_no_mistake() -> None:
    assert commit_page("git@github.com:org/repo.git", "c") == "https://github.com/org/repo/commit/c"
    assert commit_page("/srv/repo", "c") == ""


@pytest.mark.parametrize("remote", ["/srv/git/repo", "./repo", "../repo.git", "~/repo"])
def test_a_directory_of_this_machine_has_no_pages(remote: str) -> None:
    assert directory_url(remote, "main", "apps/web") == ""
    assert commit_page(remote, "c") == ""
