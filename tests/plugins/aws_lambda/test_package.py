# SPDX-License-Identifier: Apache-2.0
"""Code that is packed from a Git repository."""

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipecd.plugins.aws_lambda.package import zip_directory
from pipecd.sdk import StageStatus, UserMistake
from plugins.aws_lambda.testbed import Application
from servers.git_http import GitHttp
from servers.origin import Origin

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE
PYTHON = {"handler": "function/app.handle", "runtime": "python3.12"}


@pytest.fixture
def repository(tmp_path: Path) -> Origin:
    return Origin.begin(tmp_path / "git" / "code")


@pytest.fixture
def git(tmp_path: Path, repository: Origin) -> Iterator[GitHttp]:
    server = GitHttp(tmp_path / "git")
    yield server
    server.close()


def names(package: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        return archive.namelist()


def test_the_same_files_are_packed_into_the_same_bytes(tmp_path: Path) -> None:
    packages: list[bytes] = []
    for number in range(2):
        clone = tmp_path / str(number)
        for name in ("function/app.py", "function/lib/a.py", "function/run.sh", ".git/HEAD", "b"):
            file = clone / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
            os.utime(file, (number * 1000, number * 1000))
        (clone / "function" / "run.sh").chmod(0o700 + number * 0o55)
        packages.append(zip_directory(clone, "function"))
    assert packages[0] == packages[1]
    assert names(packages[0]) == ["function/app.py", "function/lib/a.py", "function/run.sh"]
    with zipfile.ZipFile(io.BytesIO(packages[0])) as archive:
        assert archive.getinfo("function/run.sh").external_attr >> 16 == 0o100755
        assert archive.getinfo("function/app.py").external_attr >> 16 == 0o100644


def test_the_root_of_a_repository_has_no_name_and_no_git_directory(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("x")
    (tmp_path / "app.py").write_text("x")
    assert names(zip_directory(tmp_path, "")) == ["app.py"]


@pytest.mark.parametrize("path", ["../outside", "/etc", "missing", "link"])
def test_only_directories_of_the_repository_are_packed(tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(UserMistake, match=r"source\.path"):
        zip_directory(clone, path)


def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "clone" / "function").mkdir(parents=True)
    (tmp_path / "clone" / "function" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(UserMistake, match="cannot be packed"):
        zip_directory(tmp_path / "clone", "function")


def test_a_package_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(os.urandom(600))
    monkeypatch.setattr("pipecd.plugins.aws_lambda.package._MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(UserMistake, match=r"b cannot be packed: .*; AWS accepts functions of at"):
        zip_directory(tmp_path, "")
    monkeypatch.setattr("pipecd.plugins.aws_lambda.package._MAX_UNPACKED_BYTES", 2000)
    monkeypatch.setattr("pipecd.plugins.aws_lambda.package._MAX_BYTES", 1000)
    with pytest.raises(UserMistake, match="put it into S3"):
        zip_directory(tmp_path, "")


async def test_a_function_from_git_is_deployed_and_rolled_back(
    application: Application, repository: Origin, git: GitHttp
) -> None:
    one = repository.commit({"function/app.py": "def handle(*_): return 1"})
    two = repository.commit({"function/app.py": "def handle(*_): return 2"})
    remote = git.url("code/.git")

    def function(ref: str) -> dict[str, object]:
        return application.function(
            source={"git": remote, "ref": ref, "path": "function"}, **PYTHON
        )

    old = await application.deploy("1111111", function(one))
    before = application.configuration()["CodeSha256"]
    new = application.commit("2222222", function(two), running=old)
    assert (await new.run("LAMBDA_SYNC")).status is SUCCESS
    assert application.configuration()["CodeSha256"] != before
    assert application.traffic() == ("2", {})
    # Upstream updates the code without any.
    assert (await application.rollback(new)).status is SUCCESS
    assert application.traffic() == ("1", {})
    assert application.configuration()["CodeSha256"] == before
    application.amazon.calls.clear()
    application.host.plugin_metadata.clear()
    assert (await application.commit("3333333", function(one)).run("LAMBDA_SYNC")).status is SUCCESS
    assert application.amazon.operations("UpdateFunctionCode") == []


async def test_sources_that_cannot_be_read(
    application: Application, git: GitHttp, repository: Origin
) -> None:
    repository.commit({"function/app.py": "x"})
    remote = git.url("code/.git")
    for source, error in (
        ({"git": remote, "ref": "v9"}, "has no branch, tag or commit v9"),
        ({"git": remote, "ref": "--upload-pack=x"}, "has no branch, tag or commit"),
        ({"git": git.url("missing"), "ref": "main"}, "cannot be read"),
        ({"git": str(repository.path), "ref": "main"}, "it is no https or ssh URL"),
        ({"git": "ext::sh -c date", "ref": "main"}, "it is no https or ssh URL"),
        ({"git": remote, "ref": "main", "path": "../.."}, "source.path"),
    ):
        function = application.function(source=source, **PYTHON)
        result = await application.commit("1111111", function).run("LAMBDA_SYNC")
        assert result.status is FAILURE
        assert error in result.message, source
