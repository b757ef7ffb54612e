# SPDX-License-Identifier: Apache-2.0
"""Which program runs: Terraform or OpenTofu, and in which version."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from pipecd.gotemplate.template import render
from pipecd.plugins.terraform.tools import DOWNLOADS
from pipecd.sdk import StageStatus
from plugins.terraform.testbed import Application, data


async def test_the_key_chooses_opentofu(
    application: Application, terraform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenTofu has the command line of Terraform.
    programs = application.directory / "programs"
    programs.mkdir()
    (programs / "tofu").symlink_to(terraform)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    application.target = {"tool": "terraform"}
    application.section = {"tool": "opentofu"}
    applied = await application.commit("one", data(web="v1")).run("TERRAFORM_APPLY")
    assert applied.status is StageStatus.SUCCESS, applied.message
    commands = [line.split()[1] for line in application.host.lines if line.startswith("$ ")]
    assert set(commands) == {"tofu"}


async def test_another_version_is_installed(application: Application, terraform: str) -> None:
    application.host.tools["terraform-1.4.0"] = Path(terraform)
    application.section = {"terraformVersion": "v1.4.0"}
    applied = await application.commit("one", data(web="v1")).run("TERRAFORM_APPLY")
    assert applied.status is StageStatus.SUCCESS, applied.message
    assert application.host.lines[0] == "terraform 1.4.0, commit one"


@pytest.mark.parametrize(
    ("path", "version", "expected"),
    [
        pytest.param("", "0.1.0", "the machine of piped has ", id="another version"),
        pytest.param("/nowhere", "", "it is not in PATH", id="no program"),
    ],
)
async def test_a_missing_program_is_explained(
    application: Application,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    version: str,
    expected: str,
) -> None:
    if path:
        monkeypatch.setenv("PATH", path)
    application.section = {"terraformVersion": version}
    failed = await application.commit("one", data(web="v1")).run("TERRAFORM_APPLY")
    assert failed.status is StageStatus.FAILURE
    assert failed.message.startswith(f"there is no terraform {version or '1.5.7'}: {expected}")
    assert "put terraform into PATH, correct terraformVersion" in failed.message


@pytest.mark.parametrize("version", ["latest", ">= 1.5", "1.5"])
async def test_a_version_is_one_release(application: Application, version: str) -> None:
    application.section = {"terraformVersion": version}
    failed = await application.commit("one", data(web="v1")).run("TERRAFORM_APPLY")
    assert failed.status is StageStatus.FAILURE
    assert failed.message.startswith(f"there is no terraform {version}: the machine of piped has")
    assert failed.message.endswith("terraformVersion must be one release, such as 1.5.7")


async def test_a_version_that_the_files_refuse(application: Application) -> None:
    text = 'terraform {\n  required_version = ">= 99"\n}\n'
    failed = await application.commit("one", text).run("TERRAFORM_APPLY")
    assert failed.status is StageStatus.FAILURE
    assert failed.message.startswith("terraform init: Unsupported Terraform Core version")
    assert failed.message.endswith("to a version that its files accept")


@pytest.mark.parametrize("is_intact", [True, False])
def test_a_release_is_unpacked_only_with_its_checksum(tmp_path: Path, is_intact: bool) -> None:
    releases, out = tmp_path / "releases", tmp_path / "out"
    releases.mkdir()
    file = releases / "terraform_1.2.3_linux_amd64.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("LICENSE.txt", "text")
        archive.writestr("terraform", "program")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    sums = releases / "terraform_1.2.3_SHA256SUMS"
    sums.write_text(f"{digest if is_intact else '0' * 64}  {file.name}\n")
    values = {"Name": "terraform", "Version": "1.2.3", "Os": "linux", "Arch": "amd64"}
    values |= {"TmpDir": str(tmp_path), "OutPath": str(out)}
    script = render(DOWNLOADS["terraform"].script(), values, name="script")
    # The releases are files here.
    script = script.replace("--proto =https --proto-redir =https", "")
    mirror = tmp_path / "terraform" / "1.2.3"
    mirror.parent.mkdir()
    mirror.symlink_to(releases)
    environment = {"PATH": "/usr/bin:/bin", "PIPECD_TOOL_MIRROR": f"file://{tmp_path}"}
    done = subprocess.run(["/bin/sh", "-c", script], env=environment, check=False)
    assert (done.returncode == 0) is is_intact
    assert out.exists() is is_intact
    assert not is_intact or out.read_text() == "program"


def test_a_failed_download_names_the_reason_of_the_mirror_too(tmp_path: Path) -> None:
    values = {"Name": "terraform", "Version": "1.2.3", "Os": "linux", "Arch": "amd64"}
    values |= {"TmpDir": str(tmp_path), "OutPath": str(tmp_path / "out")}
    script = render(DOWNLOADS["terraform"].script(), values, name="script")
    script = script.replace("releases.hashicorp.com", "localhost:1")
    environment = {"PATH": "/usr/bin:/bin", "PIPECD_TOOL_MIRROR": "https://localhost:2"}
    done = subprocess.run(
        ["/bin/sh", "-c", script], env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert "localhost port 1" in last
    assert "the mirror https://localhost:2: curl: (7) " in last
    assert "localhost port 2" in last
