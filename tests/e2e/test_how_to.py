# SPDX-License-Identifier: Apache-2.0
"""The commands of the how-to pages and of the API, typed one after another on one installation.

Ids, the remote and the password are those of the test. Samples for Kubernetes are deployed by
scripts here; tests/piped and the tests of the plugins deploy such pipelines to their platforms.
"""

import asyncio
import json
import os
import re
import subprocess
import textwrap
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import web_pb2
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from servers.layout import PROGRAMS, Container, first_key, server_flags, until_ready
from servers.pages import GUIDE, console_blocks
from servers.polling import eventually
from servers.server import free_port
from servers.upstream import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOW_TO = GUIDE.parent / "how-to"
PASSWORD = "hello-shop"
FILE = "app.pipecd.yaml"
CONTROL_PLANE = """\
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: http://localhost:{port}
  stateKey: a-long-random-text
  datastore: {{type: SQLITE, config: {{path: {directory}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}/files}}}}
"""
PIPED = """\
  repositories: [{{repoId: main, remote: {remote}, branch: main}}]
  secretManagement:
    type: KEY_PAIR
    config: {{privateKeyFile: {directory}/secret-private, publicKeyFile: {directory}/secret-public}}
"""
QUICKSTART_KEY = "~/.pipecd/quickstart/api-key"
# Pages without commands; their samples are read by the conventions.
WITHOUT_COMMANDS = {
    "analyse.md", "deploy-at-once.md", "deploy-in-order.md", "get-notified.md",
    "run-scripts.md", "split-traffic.md",
}  # fmt: skip
FOLLOWED = {
    "add-a-team.md", "add-an-application.md", "approve.md", "correct-drift.md", "deploy-images.md",
    "find-out.md", "index.md", "keep-secrets.md", "preview.md", "roll-back.md",
}  # fmt: skip


def blocks(page: str) -> list[str]:
    """The commands of a how-to page; those of numbered steps are indented."""
    found = re.findall(
        r"^( *)```console\n(.*?)^\1```", (HOW_TO / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return [textwrap.dedent(text) for _, text in found]


def test_every_page_with_commands_is_followed() -> None:
    pages = {page.name: bool(blocks(page.name)) for page in HOW_TO.glob("*.md")}
    assert {name for name, has_commands in pages.items() if has_commands} == FOLLOWED
    assert pages.keys() == FOLLOWED | WITHOUT_COMMANDS


@dataclass
class Reader:
    """A user with a shell, a clone of the repository and pipectl."""

    directory: Path
    remote: Path
    port: int
    ids: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def clone(self) -> Path:
        return self.directory / "apps"

    @property
    def shop(self) -> Path:
        return self.clone / "shop"

    @property
    def variables(self) -> dict[str, str]:
        identity = {"NAME": "ann", "EMAIL": "ann@example.com"}
        who = {f"GIT_{role}_{key}": text for role in ("AUTHOR", "COMMITTER") for key, text in identity.items()}  # fmt: skip
        path = f"{PROGRAMS}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.directory), "PASSWORD": "pa55word", **who}

    async def type(self, block: str, *, at: Path, answers: str = "") -> str:
        """Runs the lines of a block; answers are typed at a terminal. Returns what they print."""
        for sample, id in self.ids.items():
            block = block.replace(sample, id)
        terminal, keyboard = os.openpty()
        os.write(terminal, answers.encode())
        process = await asyncio.create_subprocess_exec(
            "sh", "-ec", block, cwd=at, env=self.variables, stdin=keyboard,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(180):
            out, errors = await process.communicate()
        for side in (terminal, keyboard):
            os.close(side)
        assert process.returncode == 0, (block, out.decode(), errors.decode())
        return out.decode()

    async def follow(self, page: str, *, at: Path | None = None) -> str:
        return "".join([await self.type(block, at=at or self.shop) for block in blocks(page)])

    async def pipectl(self, line: str) -> Any:
        return json.loads(await self.type(f"pipectl {line}", at=self.directory))

    async def commit(self, message: str, files: Mapping[str, str]) -> str:
        """Writes files of the application, commits and pushes; returns the commit."""
        for name, text in files.items():
            (self.shop / name).write_text(text)
        lines = f"git add -A && git commit -qm '{message}' && git push -q && git rev-parse HEAD"
        return (await self.type(lines, at=self.clone)).strip()

    async def deployment(self, commit: str) -> Deployment | None:
        """The deployment of a commit, polled without starting a program each time."""
        key = credentials.api_key((self.directory / "key").read_text())
        address = f"127.0.0.1:{self.port}"
        async with open_channel(address, authorization=key, insecure=True) as channel:
            request = pb.ListDeploymentsRequest(application_ids=[self.ids["0c21…"]], limit=50)
            listed = (await APIServiceStub(channel).ListDeployments(request)).deployments
        return next((d for d in listed if d.trigger.commit.hash == commit), None)

    async def ended(self, commit: str) -> str:
        """The status of the deployment of a commit once it is completed."""

        async def completed() -> Deployment | None:
            found = await self.deployment(commit)
            return found if found and found.completed_at else None

        found = await eventually(completed, within=120)
        self.ids["5f0b…"] = found.id
        return DeploymentStatus(found.status).name

    async def waits_at(self, commit: str, stage: str) -> None:
        """Waits until a stage of the deployment of a commit runs."""

        async def running() -> Deployment | None:
            found = await self.deployment(commit)
            stages = found.stages if found else ()
            names = [one.name for one in stages if one.status == StageStatus.RUNNING]
            return found if stage in names else None

        self.ids["5f0b…"] = (await eventually(running, within=120)).id


def application(**spec: Any) -> str:
    """The file of the application shop."""
    document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application"}
    planner = {"alwaysUsePipeline": True}
    return yaml.safe_dump({**document, "spec": {"name": "shop", "planner": planner, **spec}})


def script(run: str = "true") -> dict[str, Any]:
    return {"name": "SCRIPT_RUN", "with": {"run": run}}


def sample(page: str, number: int = 0) -> dict[str, Any]:
    """The spec of a sample of a page."""
    found = re.findall(r"^```yaml\n(.*?)^```", (HOW_TO / page).read_text(), re.M | re.S)
    return yaml.safe_load(found[number])["spec"]


def create_repository(remote: Path, clone: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", remote], check=True)
    subprocess.run(["git", "clone", "-q", remote, clone], check=True, capture_output=True)


@asynccontextmanager
async def installation(tmp_path: Path) -> AsyncGenerator[Reader, None]:
    """A control plane on SQLite and a piped, as processes, and a repository to push to."""
    port, remote = free_port(), tmp_path / "apps.git"
    reader = Reader(tmp_path / "reader", remote, port)
    reader.directory.mkdir()
    create_repository(remote, reader.clone)
    config = reader.directory / "control-plane.yaml"
    config.write_text(CONTROL_PLANE.format(port=port, directory=reader.directory))
    (reader.directory / "encryption-key").write_text("k" * 64)
    server, piped = Container(tmp_path / "server"), Container(tmp_path / "piped")
    words = ["pipecd", "server", f"--config-file={config}", "--insecure-cookie"]
    words += [f"--encryption-key-file={reader.directory}/encryption-key", *server_flags(port)]
    first = {"PIPECD_FIRST_PROJECT": "shop", "PIPECD_FIRST_ADMIN_PASSWORD": PASSWORD}
    async with server.started(words, first) as log:
        await until_ready(log)
        await log_in(reader, config, port)
        [keys, *_] = re.findall(r"```sh\n(.*?)```", (GUIDE / "secrets.md").read_text(), re.S)
        await reader.type(keys, at=reader.directory)
        file = reader.directory / "piped.yaml"
        await reader.pipectl(f"piped register --name dev --config-out {file}")
        settings = PIPED.format(remote=remote, directory=reader.directory)
        file.write_text(file.read_text().replace("  repositories: []\n", settings))
        [reader.ids["5c1a…"]] = re.findall(r"pipedID: (\S+)", file.read_text())
        run = ["piped", "run", f"--config-file={file}", "--insecure", "--admin-port=0"]
        async with piped.started(run):
            yield reader


async def log_in(reader: Reader, config: Path, port: int) -> None:
    """Logs in with a key that the administrator has generated in the console, and may approve."""
    await first_key(config, "shop")
    admin = Visitor(f"http://127.0.0.1:{port}", f"127.0.0.1:{port}")
    await admin.sign_in("shop", "admin", PASSWORD)
    request = web_pb2.GenerateAPIKeyRequest(name="mine", role=APIKey.READ_WRITE)
    key = (await admin.call("GenerateAPIKey", request)).key
    flags = f"--project shop --id {key.partition('.')[0]} --config-file {config}"
    set_role = f"pipecd api-key set-role --role READ_WRITE_APPROVE {flags}"
    await reader.type(set_role, at=reader.directory)
    (reader.directory / "key").write_text(key)
    [line] = blocks("index.md")
    for sample, ours in (("localhost:8080", f"localhost:{port}"), (QUICKSTART_KEY, "key")):
        assert sample in line
        line = line.replace(sample, ours)
    await reader.type(line, at=reader.directory)


async def test_the_how_to_pages_work_one_after_another(tmp_path: Path) -> None:
    async with installation(tmp_path) as reader:
        await reader.follow("add-a-team.md", at=reader.directory)
        await add_the_application(reader)
        found = await reader.follow("find-out.md")
        assert "Deploying commit" in found
        await reader.follow("correct-drift.md")
        await call_the_api(reader)
        await approve_and_reject(reader)
        await deploy_an_image(reader)
        await keep_a_secret(reader)
        await preview(reader)
        await roll_back(reader)
        await try_a_backup(reader, tmp_path)


async def add_the_application(reader: Reader) -> None:
    reader.shop.mkdir()
    [init, commit, add] = blocks("add-an-application.md")
    # The name of the directory is suggested; the second question is the platform.
    await reader.type(init, at=reader.clone, answers="\nscript\n")
    await reader.type(commit, at=reader.shop)
    head = (await reader.type("git rev-parse HEAD", at=reader.clone)).strip()
    assert (await reader.type("git status --short", at=reader.clone)) == ""

    async def is_known() -> bool:
        piped = await reader.pipectl(f"piped get --piped-id {reader.ids['5c1a…']}")
        return "repositories" in piped

    await eventually(is_known, within=120)
    await reader.type(add, at=reader.shop)
    [found] = (await reader.pipectl("application list --app-name shop"))["applications"]
    reader.ids["0c21…"] = found["id"]
    assert await reader.ended(head) == "SUCCESS"


async def call_the_api(reader: Reader) -> None:
    """The three requests of the guide of the API: a list, a sync and an event; and its program."""
    page = (GUIDE / "api.md").read_text()
    [block] = re.findall(r"^```console\n(.*?)^```", page, re.M | re.S)
    lines = block.replace("https://cd.example.com", f"http://localhost:{reader.port}")
    variables = f'API_KEY="$(cat key)" ID={reader.ids["0c21…"]}'
    answers = [
        json.loads(await reader.type(f"{variables}\n{line[2:]}", at=reader.directory))
        for line in lines.splitlines()
    ]
    assert [a["name"] for a in answers[0]["applications"]] == ["shop"]
    assert [list(answer) for answer in answers[1:]] == [["command_id"], ["event_id"]]
    [program] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    channel = 'secure_channel("cd.example.com:443", grpc.ssl_channel_credentials())'
    assert channel in program
    program = program.replace(channel, f'insecure_channel("localhost:{reader.port}")')
    (reader.directory / "list.py").write_text(program)
    listed = await reader.type("python list.py key", at=reader.directory)
    assert listed.split() == [reader.ids["0c21…"], "shop"]


async def approve_and_reject(reader: Reader) -> None:
    [approval] = [s for s in sample("approve.md")["pipeline"]["stages"] if "APPROVAL" in s["name"]]
    approval["with"]["approvers"] = ["admin"]
    pipeline = {"stages": [script(), approval]}
    [lines] = blocks("approve.md")
    approve, reject = lines.splitlines()
    for number, (line, status) in enumerate(((approve, "SUCCESS"), (reject, "FAILURE"))):
        text = application(pipeline=pipeline, description=line)
        commit = await reader.commit(f"approval {number}", {FILE: text})
        await reader.waits_at(commit, "WAIT_APPROVAL")
        await reader.type(line, at=reader.shop)
        assert await reader.ended(commit) == status


async def deploy_an_image(reader: Reader) -> None:
    image = {"containers": [{"image": "registry.example.com/shop:v1"}]}
    manifest = yaml.safe_dump({"spec": {"template": {"spec": image}}})
    watcher = sample("deploy-images.md")["eventWatcher"]
    text = application(pipeline={"stages": [script()]}, eventWatcher=watcher)
    commit = await reader.commit("watch", {FILE: text, "deployment.yaml": manifest})
    assert await reader.ended(commit) == "SUCCESS"
    await reader.follow("deploy-images.md")

    async def pushed() -> bool:
        await reader.type("git pull -q", at=reader.clone)
        return "shop:v1.4.2" in (reader.shop / "deployment.yaml").read_text()

    await eventually(pushed, within=120)
    head = (await reader.type("git rev-parse HEAD", at=reader.clone)).strip()
    assert await reader.ended(head) == "SUCCESS"


async def keep_a_secret(reader: Reader) -> None:
    encrypted = (await reader.follow("keep-secrets.md")).strip()
    encryption = sample("keep-secrets.md")["encryption"]
    encryption["encryptedSecrets"] = {"password": encrypted}
    stage = script('grep -qx "password: $(printf %s pa55word)" secret.yaml && cat secret.yaml')
    text = application(pipeline={"stages": [stage]}, encryption=encryption)
    secret = "password: {{ .encryptedSecrets.password }}\n"
    commit = await reader.commit("a secret", {FILE: text, "secret.yaml": secret})
    assert await reader.ended(commit) == "SUCCESS"
    logs = await reader.type("pipectl deployment logs --deployment-id 5f0b…", at=reader.shop)
    assert "******" in logs
    assert "pa55word" not in logs.replace("printf %s pa55word", "")


async def preview(reader: Reader) -> None:
    reader.ids["git@github.com:example/shop.git"] = str(reader.remote)
    await reader.type("git switch -qc new-page && git push -qu origin new-page", at=reader.clone)
    await reader.commit("a page", {"page.html": "new\n"})
    printed = await reader.follow("preview.md")
    assert "app: shop" in printed
    await reader.type("git switch -q main", at=reader.clone)


async def roll_back(reader: Reader) -> None:
    [cancel, revert] = blocks("roll-back.md")
    stages = [script(), {"name": "WAIT", "with": {"duration": "10m"}}]
    text = application(pipeline={"stages": stages})
    commit = await reader.commit("slow", {FILE: text})
    await reader.waits_at(commit, "WAIT")
    listed = await reader.type(cancel, at=reader.shop)
    assert reader.ids["5f0b…"] in listed
    assert await reader.ended(commit) == "CANCELLED"
    await reader.type(revert, at=reader.shop)
    head = (await reader.type("git rev-parse HEAD", at=reader.clone)).strip()
    assert await reader.ended(head) == "SUCCESS"


async def try_a_backup(reader: Reader, directory: Path) -> None:
    """A second server on a copy of the database, beside the first one, as the guide starts it."""
    [copy, *_] = console_blocks("backup.md", "SQLite, while the server runs")
    await reader.type(copy, at=reader.directory)
    text = (reader.directory / "control-plane.yaml").read_text()
    text = text.replace("pipecd.db", "pipecd-2026-11-16.db")
    (reader.directory / "copy.yaml").write_text(text)
    [start] = console_blocks("backup.md", "Try it")
    port = free_port()
    second = Container(directory / "second")
    line = f"cd {reader.directory}\nexec {start.replace('9190', str(port))}"
    async with second.started(["sh", "-ec", line]) as log:
        await until_ready(log)
        flags = f"--address localhost:{port} --insecure --api-key-file key"
        [found] = (await reader.pipectl(f"application list {flags}"))["applications"]
        assert found["id"] == reader.ids["0c21…"]
