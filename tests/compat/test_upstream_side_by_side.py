# SPDX-License-Identifier: Apache-2.0
"""Every command that upstream's pipectl and ours share, typed to both on one control plane."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.model.ids import new_id
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.secrets import hybrid
from servers.installation import Completed
from servers.our_installation import OpenInstallation, OurInstallation
from servers.programs import OUR_PIPECTL
from servers.registry import OciRegistry
from servers.tenants import PUBLIC_KEY, new_deployment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# What is run of each shared command; names in braces are of the object that the program may change.
LINES = {
    "application add": "--app-name new --app-kind TERRAFORM --platform-provider tf --repo-id site --app-dir new --piped-id {piped}",
    "application delete": "--app-id {application}",
    "application disable": "--app-id {application}",
    "application get": "--app-id {application}",
    "application list": "--app-name {name} --label env:dev",
    "application sync": "--app-id {application} --check-interval 1s --timeout 2s",
    "deployment list": "--app-id {application}",
    "deployment logs": "--deployment-id {deployment}",
    "deployment wait-status": "--deployment-id {deployment} --status DEPLOYMENT_PENDING",
    "encrypt": "--piped-id {piped} --input-file {file}",
    "event register": "--name image --data v2 --labels env=dev --contexts a=b --commit-hash abc",
    "migrate application-config": "--config-files {config}",
    "migrate database": "--applications {application}",
    "piped disable": "--piped-id {piped}",
    "piped enable": "--piped-id {piped}",
    "plan-preview": "--repo-remote-url none --base-branch main --head-branch b --head-commit c",
    "plugin push": "--files linux/amd64={file} --tag v1 --registry {registry} --repository {name} --insecure",
    "transfer backup": "--output-file {output} --labels owner:{owner}",
    "transfer restore application": "--input-file {backup} --piped-id-mapping-file {mapping}",
    "transfer restore piped": "--input-file {backup} --output-file {output}",
}  # fmt: skip
# These do not connect to a control plane.
LOCAL = {"plugin push"}
# Ours prints the reference of what was pushed, with its digest.
PRINTED_BY_OURS = {"plugin push"}
# What these log about their progress is in words of our own.
PROGRESS = ("migrate", "plugin", "transfer")
# Commands of every program that uses cobra.
NOT_SHARED = {"completion", "help", "version"}


def help_of(program: Path, *words: str) -> str:
    ran = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True)
    return ran.stdout


def commands_of(program: Path, *words: str) -> Iterator[tuple[str, ...]]:
    """The commands without subcommands of a program that uses cobra."""
    section = re.search(r"Available Commands:\n((?:  .+\n)+)", help_of(program, *words))
    names = [line.split()[0] for line in section[1].splitlines()] if section else []
    if not names:
        yield words
    for name in names:
        if name not in NOT_SHARED:
            yield from commands_of(program, *words, name)


def flags_of(program: Path, words: tuple[str, ...]) -> dict[str, str]:
    """The flags of a command and their defaults."""
    lines = re.findall(r"^ +(?:-\w, )?--([\w-]+)(.*)$", help_of(program, *words), re.MULTILINE)
    found: dict[str, str] = {}
    for name, rest in lines:
        default = re.search(r'\(default "?([^")]*)"?\)$', rest.strip())
        found[name] = default[1] if default else ""
    return found


def test_all_commands_of_upstream_are_compared(upstream_pipectl: Path) -> None:
    assert {" ".join(words) for words in commands_of(upstream_pipectl)} == set(LINES)


@pytest.mark.parametrize("command", LINES)
def test_ours_has_all_flags_of_upstream(command: str, upstream_pipectl: Path) -> None:
    words = tuple(command.split())
    ours = subprocess.run(
        [OUR_PIPECTL, *words, "--help"], capture_output=True, text=True, check=True
    ).stdout
    for flag in flags_of(upstream_pipectl, words):
        assert f"--{flag}" in ours


class Scene:
    """What one of the programs may change: objects that are alike for both but for their ids."""

    def __init__(self, installation: OurInstallation, directory: Path) -> None:
        self._installation, self.directory = installation, directory
        self.values: dict[str, str] = {}

    async def prepare(self, registry: OciRegistry) -> None:
        cases, admin = self._installation.cases, self._installation.admin
        registered = await cases.pipeds.register("p", "", by=admin)
        caller = PipedCaller(admin.project, registered.id)
        repository = common.ApplicationGitRepository(id="site", remote="git@h:o/r", branch="main")
        meta = ReportPipedMetaRequest(version="v1", repositories=[repository], config="{}")
        meta.secret_encryption.type = "KEY_PAIR"
        meta.secret_encryption.public_key = PUBLIC_KEY.read_text()
        await cases.pipeds.report_meta(meta, by=caller)
        # Each program lists its own.
        name, owner = f"web-{self.directory.name}", new_id()
        place = common.ApplicationGitPath(repo=repository, path=name)
        draft = Application(
            name=name, piped_id=registered.id, kind=common.ECS, platform_provider="cloud",
            git_path=place, labels={"env": "dev", "owner": owner},
        )  # fmt: skip
        id = await cases.applications.add(draft, by=admin)
        application = await cases.applications.get(id, by=admin)
        deployment = new_deployment(application, f"deployment-of-{name}")
        await cases.deployment_reports.create(deployment, by=caller)
        self.values = {
            "piped": registered.id,
            "application": id,
            "deployment": deployment.id,
            "name": name,
            "owner": owner,
            "registry": f"127.0.0.1:{registry.port}",
            **self._files(registered.id),
        }

    def _files(self, piped: str) -> dict[str, str]:
        contents = {
            "file": "a secret",
            "config": "apiVersion: pipecd.dev/v1beta1\nkind: ECSApp\nspec: {name: web}\n",
            "backup": json.dumps({"version": "1", "pipeds": [{"id": piped, "name": "q"}]}),
            "mapping": json.dumps({"piped_mappings": []}),
            "output": "",
        }
        self.directory.mkdir()
        for name, content in contents.items():
            (self.directory / name).write_text(content)
        return {name: str(self.directory / name) for name in contents}

    async def type(self, program: Path, command: str) -> Completed:
        words = [*command.split(), *LINES[command].format(**self.values).split()]
        if command not in LOCAL:
            words += self._installation.pipectl_flags()
        return await self._installation.run(program, *words)

    def anonymous(self, text: str) -> str:
        """The text with the ids of the objects replaced by what they are of."""
        for name, value in self.values.items():
            text = text.replace(value, f"<{name}>")
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", text)
        text = re.sub(r"\b1[0-9]{9}\b|\d{4}[-/]\d\d[-/]\d\d[ T][\d:]{8}Z?", "<time>", text)
        return re.sub(r'(_key"): "[^"]+"', r'\1: "<key>"', text)


@pytest.mark.parametrize("command", LINES)
async def test_both_do_the_same(
    command: str,
    open_installation: OpenInstallation,
    upstream_pipectl: Path,
    registry: OciRegistry,
    tmp_path: Path,
) -> None:
    async with open_installation() as installation:
        theirs, ours = [
            await printed(Scene(installation, tmp_path / name), program, command, registry)
            for name, program in (("theirs", upstream_pipectl), ("ours", OUR_PIPECTL))
        ]
    assert ours.code == theirs.code
    assert ours.files == theirs.files
    if command not in PRINTED_BY_OURS:
        assert ours.out == theirs.out
    if not command.startswith(PROGRESS):
        assert ours.err == theirs.err


@dataclass(frozen=True)
class Printed:
    """What a program printed and wrote, without the ids."""

    code: int
    out: str
    err: list[str]
    files: dict[str, str]


async def printed(scene: Scene, program: Path, command: str, registry: OciRegistry) -> Printed:
    await scene.prepare(registry)
    done = await scene.type(program, command)
    out, err = scene.anonymous(done.out), scene.anonymous(done.err)
    if command == "encrypt":
        private = (PUBLIC_KEY.parent / "secret_private.pem").read_bytes()
        out = hybrid.decrypt(private, out.strip())
    # A sync is waited for at intervals of its own; ours adds what to do about an error.
    lines = [line.partition("; ")[0] for line in err.splitlines() if line != "..."]
    files = {file.name: scene.anonymous(file.read_text()) for file in scene.directory.iterdir()}
    return Printed(done.code, out, lines, {name: comparable(text) for name, text in files.items()})


def comparable(text: str) -> str:
    """The content of a JSON or YAML file in one spelling; ours keeps the style of the file."""
    return json.dumps(yaml.safe_load(text), sort_keys=True)
