# SPDX-License-Identifier: Apache-2.0
"""The launcher loads the configuration from the source that its flags name."""

import base64
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest

from pipecd.launcher.command import launcher
from pipecd.launcher.source import open_source
from pipecd.model.errors import NotFound, UserMistake
from servers.git_ssh import GitSsh
from servers.google import GoogleCloud
from servers.objects import S3
from servers.origin import Origin

CONFIG = b"kind: Piped\n"
ENCODED = base64.b64encode(CONFIG).decode()


def given(*flags: str) -> Any:
    written = [f"{each}=true" if each.startswith("--config-from-") else each for each in flags]
    return launcher.make_context("launcher", written).params


async def loaded(tmp_path: Path, *flags: str) -> bytes:
    async with open_source(given(*flags), home=tmp_path / "home") as load:
        return await load()


async def test_a_file_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "piped.yaml").write_bytes(b"from the file")
    file = f"--config-file={tmp_path / 'piped.yaml'}"
    data = f"--config-data={ENCODED}"
    assert await loaded(tmp_path, data, file, "--config-from-git-repo") == b"from the file"
    assert await loaded(tmp_path, "--config-from-gcp-secret", data) == CONFIG


async def test_a_configuration_in_the_secret_stores_of_clouds(
    tmp_path: Path, aws: S3, google: GoogleCloud
) -> None:
    name = f"piped-{uuid4().hex}"
    secrets, parameters = boto3.client("secretsmanager"), boto3.client("ssm")
    secrets.create_secret(Name=name, SecretString=ENCODED)
    parameters.put_parameter(Name=name, Type="String", Value=ENCODED)
    google.secrets["projects/p/secrets/s/versions/latest"] = CONFIG
    for flags in (
        ("--config-from-gcp-secret", "--gcp-secret-id=projects/p/secrets/s"),
        ("--config-from-aws-secret", f"--aws-secret-id={name}"),
        ("--config-from-aws-ssm-parameter-store", f"--aws-ssm-parameter={name}"),
    ):
        assert await loaded(tmp_path, *flags) == CONFIG


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        pytest.param([], r"either \[config-file, config-data, config-from-gcp-secret, .*, config-from-git-repo\] must be set", id="no source"),
        pytest.param(["--config-from-gcp-secret"], "gcp-secret-id must be set", id="no secret of Google"),
        pytest.param(["--config-from-aws-secret"], "aws-secret-id must be set", id="no secret of AWS"),
        pytest.param(["--config-from-aws-ssm-parameter-store"], "aws-ssm-parameter must be set", id="no parameter"),
        pytest.param(["--config-from-git-repo"], "git-repo-url must be set", id="no repository"),
        pytest.param(["--config-from-git-repo", "--git-repo-url=u"], "git-branch must be set", id="no branch"),
        pytest.param(["--config-from-git-repo", "--git-repo-url=u", "--git-branch=b"], "git-piped-config-file must be set", id="no file"),
    ],
)  # fmt: skip
async def test_a_missing_flag_is_named(tmp_path: Path, flags: list[str], error: str) -> None:
    with pytest.raises(UserMistake, match=error):
        await loaded(tmp_path, *flags)


FILE = "pipeds/dev.yaml"
GIT = ("--config-from-git-repo", "--git-branch=main", f"--git-piped-config-file={FILE}")


async def test_a_commit_to_the_file_in_git_is_loaded(tmp_path: Path) -> None:
    repository = Origin.begin(tmp_path / "repository")
    repository.commit({FILE: "first"})
    flags = given(*GIT, f"--git-repo-url={repository.remote}")
    async with open_source(flags, home=tmp_path / "home") as load:
        assert await load() == b"first"
        assert await load() == b"first"
        repository.commit({FILE: "second"})
        assert await load() == b"second"
    async with open_source(flags, home=tmp_path / "home") as load:
        assert await load() == b"second", "the clone of the earlier start is reused"


async def test_git_over_ssh_uses_the_key(tmp_path: Path, git_ssh: GitSsh) -> None:
    repository = Origin.begin(tmp_path / "repository")
    repository.commit({FILE: "over ssh"})
    (tmp_path / "key").write_text(git_ssh.private_key)
    data = base64.b64encode(git_ssh.private_key.encode()).decode()
    url = f"--git-repo-url={git_ssh.url(repository.path)}"
    for key in (f"--git-ssh-key-file={tmp_path / 'key'}", f"--git-ssh-key-data={data}"):
        assert await loaded(tmp_path, *GIT, url, key) == b"over ssh"


async def test_a_missing_file_in_git_is_named(tmp_path: Path) -> None:
    repository = Origin.begin(tmp_path / "repository")
    repository.commit({FILE: "x"})
    flags = (*GIT, "--git-piped-config-file=none.yaml", f"--git-repo-url={repository.remote}")
    with pytest.raises(NotFound, match=r"none\.yaml"):
        await loaded(tmp_path, *flags)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        pytest.param(["--git-ssh-key-file=a", "--git-ssh-key-data=YQ=="], "only one of git-ssh-key-file or", id="two keys"),
        pytest.param(["--git-ssh-key-file=/nowhere"], "cannot read /nowhere: No such file", id="no file"),
        pytest.param(["--git-ssh-key-data=?"], "--git-ssh-key-data is not base64", id="no base64"),
    ],
)  # fmt: skip
async def test_an_invalid_ssh_key_is_rejected(tmp_path: Path, flags: list[str], error: str) -> None:
    with pytest.raises(UserMistake, match=error):
        await loaded(tmp_path, *GIT, "--git-repo-url=ssh://h/r", *flags)
