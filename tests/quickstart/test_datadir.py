# SPDX-License-Identifier: Apache-2.0
"""The data directory of a quickstart: secrets, lock, configuration files, sample repository."""

import stat
from pathlib import Path

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_application, read_control_plane, read_piped
from pipecd.model.errors import UserMistake
from pipecd.quickstart.datadir import DataDir, Identity, locked_data_dir
from pipecd.quickstart.sample_repository import (
    APPLICATION,
    SERVICE,
    create_repository,
    git,
)


def test_secrets_are_stored_privately_and_reused(tmp_path: Path) -> None:
    with locked_data_dir(tmp_path / "a" / "b") as data:
        identity, key = data.load_identity(), data.load_encryption_key()
    with locked_data_dir(tmp_path / "a" / "b") as data:
        assert (data.load_identity(), data.load_encryption_key()) == (identity, key)
        for file in (data.path / "identity.json", data.encryption_key):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_locked_directory_is_refused_and_the_error_names_the_process(tmp_path: Path) -> None:
    with (
        locked_data_dir(tmp_path),
        pytest.raises(UserMistake, match=r"process \d+.*--data-dir"),
        locked_data_dir(tmp_path),
    ):
        pass


def test_a_damaged_identity_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(UserMistake, match="damaged"):
        DataDir(tmp_path).load_identity()


def test_the_configuration_files_are_valid_for_any_path(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "it's: #1")
    data.path.mkdir()
    spec = read_control_plane(
        data.write_control_plane_config(address="http://127.0.0.1:1"), file="cp"
    )
    assert spec.datastore.config.path == str(data.path / "pipecd.db")
    text = data.write_piped_config(
        Identity("p", "piped", "key", status_port=2), host="127.0.0.1", port=1
    )
    piped = read_piped(text, file="piped", catalog=load_catalog()).spec
    assert piped.repositories[0].remote == data.repository.as_uri()
    [target] = next(p for p in piped.plugins if p.name == "process").deploy_targets
    assert target.config == {"directory": str(data.programs), "statusPort": 2}


async def test_the_sample_repository_is_created_once(tmp_path: Path) -> None:
    await create_repository(tmp_path, service_port=1, status_port=2)
    before = (tmp_path / ".git" / "refs" / "heads" / "main").read_text()
    await create_repository(tmp_path, service_port=3, status_port=4)
    assert (tmp_path / ".git" / "refs" / "heads" / "main").read_text() == before


async def test_users_without_a_git_identity_can_commit_and_others_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    settings.write_text("[user]\nuseConfigOnly = true\n")
    await create_repository(tmp_path / "new", service_port=1, status_port=2)
    settings.write_text("[user]\nuseConfigOnly = true\nname = Ann\nemail = ann@example.com\n")
    await create_repository(tmp_path / "known", service_port=1, status_port=2)
    settings.write_text("[user]\nuseConfigOnly = true\n")
    # A repository of an earlier version has no identity of its own.
    await git(tmp_path / "new", "config", "--remove-section", "user")
    await create_repository(tmp_path / "new", service_port=1, status_port=2)
    await git(tmp_path / "new", "commit", "--quiet", "--allow-empty", "--message", "Mine")
    author = ("log", "-1", "--format=%an <%ae>")
    assert await git(tmp_path / "new", *author) == "PipeCD quickstart <quickstart@localhost>"
    assert await git(tmp_path / "known", *author) == "Ann <ann@example.com>"
    assert "[user]" not in (tmp_path / "known" / ".git" / "config").read_text()


async def test_the_samples_are_valid(tmp_path: Path) -> None:
    await create_repository(tmp_path, service_port=1, status_port=2)
    for name in (APPLICATION, SERVICE):
        file = tmp_path / name / "app.pipecd.yaml"
        read = read_application(file.read_bytes(), file=str(file), catalog=load_catalog())
        assert read.warnings == ()
    assert ":2/applications/web/canary" in file.read_text()
    compile((tmp_path / SERVICE / "server.py").read_text(), "server.py", "exec")
