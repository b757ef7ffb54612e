# SPDX-License-Identifier: Apache-2.0
"""Lines that upstream's pipectl and ours are given on one control plane, ours or upstream's."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.model.ids import new_id
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service.piped_pb2 import CreateDeploymentRequest, ReportPipedMetaRequest
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.secrets import hybrid
from pipecd.wire.channel import open_channel
from pipecd.wire.credentials import piped_token
from servers.installation import Completed, Installation
from servers.our_installation import OurInstallation
from servers.registry import OciRegistry
from servers.tenants import PUBLIC_KEY, new_deployment
from servers.upstream import UpstreamInstallation

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
_REPOSITORY = common.ApplicationGitRepository(id="site", remote="git@h:o/r", branch="main")


@dataclass(frozen=True)
class SceneObjects:
    """The ids of objects that one of the programs may change."""

    piped: str
    application: str
    deployment: str


class SceneServer(Protocol):
    """A control plane on which both programs are tried."""

    @property
    def installation(self) -> Installation: ...

    async def add_objects(self, draft: Application) -> SceneObjects:
        """Adds a piped that has reported its keys, the application and a pending deployment."""
        ...

    async def flags(self) -> list[str]:
        """The flags of pipectl that connect to it."""
        ...


def _report() -> ReportPipedMetaRequest:
    meta = ReportPipedMetaRequest(version="v1", repositories=[_REPOSITORY], config="{}")
    meta.secret_encryption.type = "KEY_PAIR"
    meta.secret_encryption.public_key = PUBLIC_KEY.read_text()
    return meta


@dataclass(frozen=True)
class OurSceneServer:
    """A control plane of ours in the process of the test."""

    installation: OurInstallation

    async def add_objects(self, draft: Application) -> SceneObjects:
        cases, admin = self.installation.cases, self.installation.admin
        registered = await cases.pipeds.register("p", "", by=admin)
        caller = PipedCaller(admin.project, registered.id)
        await cases.pipeds.report_meta(_report(), by=caller)
        draft.piped_id = registered.id
        id = await cases.applications.add(draft, by=admin)
        application = await cases.applications.get(id, by=admin)
        deployment = new_deployment(application, f"deployment-of-{draft.name}")
        await cases.deployment_reports.create(deployment, by=caller)
        return SceneObjects(registered.id, id, deployment.id)

    async def flags(self) -> list[str]:
        return self.installation.pipectl_flags()


@dataclass(frozen=True)
class UpstreamSceneServer:
    """Upstream's control plane; the objects are added by its API for the console and for pipeds."""

    installation: UpstreamInstallation

    async def add_objects(self, draft: Application) -> SceneObjects:
        id, key = await self.installation.register("p")
        token = piped_token("demo", id, key)
        address = self.installation.address
        async with open_channel(address, authorization=token, insecure=True) as channel:
            piped = PipedServiceStub(channel)
            await piped.ReportPipedMeta(_report())
            draft.piped_id, draft.project_id = id, "demo"
            draft.id = await self.installation.add_application(draft.git_path.path, draft)
            deployment = new_deployment(draft, f"deployment-of-{draft.name}-{draft.id}")
            await piped.CreateDeployment(CreateDeploymentRequest(deployment=deployment))
        return SceneObjects(id, draft.id, deployment.id)

    async def flags(self) -> list[str]:
        key = await self.installation.api_key()
        return ["--address", self.installation.api_address, "--api-key", key, "--insecure"]


class Scene:
    """What one of the programs may change: objects that are alike for both but for their ids."""

    def __init__(self, server: SceneServer, directory: Path) -> None:
        self._server, self.directory = server, directory
        self.values: dict[str, str] = {}

    async def prepare(self, registry: OciRegistry) -> None:
        # Each program lists its own.
        name, owner = f"web-{self.directory.name}", new_id()
        draft = Application(
            name=name, kind=common.ECS, platform_provider="cloud",
            git_path=common.ApplicationGitPath(repo=_REPOSITORY, path=name),
            labels={"env": "dev", "owner": owner},
        )  # fmt: skip
        objects = await self._server.add_objects(draft)
        self.values = {
            "piped": objects.piped,
            "deployment": objects.deployment,
            "application": objects.application,
            "name": name,
            "owner": owner,
            "registry": f"127.0.0.1:{registry.port}",
            **self._files(objects.piped),
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

    async def type(
        self, program: Path, command: str, lines: Mapping[str, str] = LINES
    ) -> Completed:
        words = [*command.split(), *lines[command].format(**self.values).split()]
        if command not in LOCAL:
            words += await self._server.flags()
        return await self._server.installation.run(program, *words)

    def anonymous(self, text: str) -> str:
        """The text with the ids of the objects replaced by what they are of."""
        for name, value in self.values.items():
            text = text.replace(value, f"<{name}>")
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", text)
        # Upstream returns one after the last page, too: an id and a time in base64.
        text = re.sub(r'"cursor":"[^"]+"', '"cursor":"<cursor>"', text)
        text = re.sub(r"\b1[0-9]{9}\b|\d{4}[-/]\d\d[-/]\d\d[ T][\d:]{8}Z?", "<time>", text)
        return re.sub(r'(_key"): "[^"]+"', r'\1: "<key>"', text)


@dataclass(frozen=True)
class Printed:
    """What a program printed and wrote, without the ids."""

    code: int
    out: str
    err: list[str]
    files: dict[str, str]


async def printed(scene: Scene, program: Path, command: str, registry: OciRegistry) -> Printed:
    """Runs a shared command on objects of its own."""
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
