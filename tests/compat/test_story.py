# SPDX-License-Identifier: Apache-2.0
"""An event, its deployment chain, notifications, drift and a plan preview, one after the other.

Whole programs run on a real cluster, with our control plane and with upstream's.
"""

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from servers.installation import Program
from servers.kubernetes import Kubernetes
from servers.our_installation import OpenInstallation, OurInstallation
from servers.programs import OUR_PIPECTL, OUR_PIPED
from servers.receivers import (
    DISCORD,
    SLACK_HOOK,
    TEAMS,
    WEBHOOK,
    Mailbox,
    Receivers,
    notifications_config,
)
from servers.upstream import UpstreamInstallation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


FRONT = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: front
  plugins: {kubernetes: {input: {namespace: NAMESPACE}}}
  eventWatcher:
    - matcher: {name: image, labels: {app: shop}}
      handler:
        type: GIT_UPDATE
        config:
          commitMessage: "Use {{ .Value }}"
          replacements:
            - file: web.yaml
              yamlField: $.spec.template.spec.containers[0].image
  postSync:
    chain:
      applications: [{name: back}]
"""

BACK = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: back
  plugins: {kubernetes: {input: {namespace: NAMESPACE}}}
  trigger: {onChain: {disabled: false}}
"""

WEB = """\
# The web server of the shop.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: NAME
spec:
  replicas: 2
  selector:
    matchLabels: {app: NAME}
  template:
    metadata:
      labels: {app: NAME}
    spec:
      containers:
        - name: web
          image: web:v1 # kept by events
"""

TRIGGERED, SUCCEEDED, PLANNED, PIPED_STARTED, OUT_OF_SYNC = 0, 4, 1, 300, 101


@dataclass
class Story:
    """The installation that all steps share."""

    installation: OurInstallation | UpstreamInstallation
    flags: list[str]
    kubernetes: Kubernetes
    namespace: str
    running: list[Program]

    async def pipectl(self, *line: str) -> str:
        done = await self.installation.run(OUR_PIPECTL, *line, *self.flags)
        assert done.code == 0, done
        return str(done.out)

    async def eventually(self, question: Any) -> Any:
        try:
            # Without wake-ups every component polls once a minute, one after the other.
            return await self.installation.eventually(question, within=300)
        except AssertionError as e:
            raise AssertionError("\n".join(piped.text for piped in self.running)) from e

    async def application(self, id_: str) -> Any:
        return json.loads(await self.pipectl("application", "get", "--app-id", id_))

    async def succeeded(self, application: str, commit: str, *, in_chain: bool) -> Any:
        """The deployment of a commit once it went well."""
        for deployment in await self.installation.deployments():
            if (
                deployment.application_id == application
                and deployment.trigger.commit.hash == commit
                and bool(deployment.deployment_chain_id) == in_chain
                and DeploymentStatus(deployment.status).is_completed
            ):
                assert deployment.status == DeploymentStatus.SUCCESS, deployment.status_reason
                return deployment
        return None

    def place(self, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}"

    def image(self, name: str) -> str:
        spec = self.kubernetes.ask("GET", self.place(name))["spec"]
        return str(spec["template"]["spec"]["containers"][0]["image"])


async def check_event(story: Story, front: str, back: str) -> Deployment:
    """The event becomes a commit, the commit a deployment, and the chain deploys the second one."""
    origin = story.installation.origin
    before = origin.git("rev-parse", "HEAD")
    event = ("event", "register", "--name", "image", "--labels", "app=shop", "--data", "web:v2")
    await story.pipectl(*event)

    async def pushed() -> str | None:
        head = str(origin.git("rev-parse", "HEAD"))
        return head if head != before else None

    commit = await story.eventually(pushed)
    assert origin.git("log", "-1", "--format=%s") == "Use web:v2"
    changed = origin.git("diff", "--unified=0", before, commit).splitlines()[-2:]
    assert [line.strip() for line in changed] == [
        "-          image: web:v1 # kept by events",
        "+          image: web:v2 # kept by events",
    ]
    first = await story.eventually(lambda: story.succeeded(front, commit, in_chain=True))
    assert story.image("front") == "web:v2"
    second = await story.eventually(lambda: story.succeeded(back, commit, in_chain=True))
    assert first.deployment_chain_id == second.deployment_chain_id
    assert (first.deployment_chain_block_index, second.deployment_chain_block_index) == (0, 1)
    assert first.piped_id != second.piped_id
    return first


async def check_notifications(
    story: Story, deployment: Deployment, receivers: Receivers, mailbox: Mailbox
) -> None:
    """Each of five receivers gets the success of the deployment."""

    async def arrived() -> bool:
        posted = [d.json for d in receivers.at(WEBHOOK)]
        mine = {
            p["Type"]
            for p in posted
            if p["Metadata"].get("deployment", {}).get("id") == deployment.id
        }
        is_complete = {TRIGGERED, PLANNED, SUCCEEDED} <= mine
        return is_complete and PIPED_STARTED in {p["Type"] for p in posted} and everywhere()

    def everywhere() -> bool:
        words = "completed successfully"
        by_http = all(
            any(words in d.body.decode() and deployment.id in d.body.decode() for d in found)
            for found in (receivers.at(path) for path in (SLACK_HOOK, TEAMS, DISCORD))
        )
        return by_http and any(words in mail.subject for mail in mailbox.mails)

    await story.eventually(arrived)


async def check_drift(story: Story, front: str, receivers: Receivers) -> None:
    """A manual change is detected, explained, notified, and reverted by a sync."""

    async def status(expected: SyncStatus) -> Any:
        state = (await story.application(front)).get("sync_state", {})
        return state if state.get("status") == expected else None

    await story.eventually(lambda: status(SyncStatus.SYNCED))
    patch = {"spec": {"replicas": 5}}
    form = "application/merge-patch+json"
    story.kubernetes.ask("PATCH", story.place("front"), patch, form=form)
    state = await story.eventually(lambda: status(SyncStatus.OUT_OF_SYNC))
    assert (
        state["short_reason"] == "There are 1 manifests not synced (0 adds, 0 deletes, 1 changes)"
    )
    lines = [line.strip() for line in state["reason"].splitlines()]
    assert "#spec.replicas" in lines
    assert [line for line in lines if line[:1] in "+-" and "replicas" in line] == [
        "-   replicas: 5",
        "+   replicas: 2",
    ]
    assert sum(line.startswith("#spec") for line in lines) == 1

    async def notified() -> bool:
        return any(d.json["Type"] == OUT_OF_SYNC for d in receivers.at(WEBHOOK))

    await story.eventually(notified)
    await story.pipectl("application", "sync", "--app-id", front, "--check-interval", "1s")
    await story.eventually(lambda: status(SyncStatus.SYNCED))


async def check_plan_preview(story: Story, directory: Path) -> None:
    """The plan preview of a branch shows what merging it would change."""
    installation = story.installation
    text = (installation.origin.path / "front/web.yaml").read_text().replace("web:v2", "web:v3")
    branch, commit = installation.origin.branch({"front/web.yaml": text})
    out = directory / "preview.json"
    shown = await story.pipectl(
        "plan-preview",
        f"--repo-remote-url={installation.origin.remote}",
        f"--head-branch={branch}",
        f"--head-commit={commit}",
        "--base-branch=main",
        f"--out={out}",
    )
    (result,) = json.loads(out.read_text())["Applications"]
    assert result["ApplicationName"] == "front"
    assert "front" in shown
    for line in ("-          image: web:v2", "+          image: web:v3"):
        assert any(line.split() == one.split()[: len(line.split())] for one in shown.splitlines())
    assert story.image("front") == "web:v2"


async def run_story(
    installation: OurInstallation | UpstreamInstallation, flags: list[str], cluster: tuple[Kubernetes, str], notified: tuple[Receivers, Mailbox],
    free_port: Callable[[], int],
) -> None:  # fmt: skip
    kubernetes, namespace = cluster
    receivers, mailbox = notified
    installation.origin.commit(
        {
            "front/app.pipecd.yaml": FRONT.replace("NAMESPACE", namespace),
            "front/web.yaml": WEB.replace("NAME", "front"),
            "back/app.pipecd.yaml": BACK.replace("NAMESPACE", namespace),
            "back/web.yaml": WEB.replace("NAME", "back"),
        }
    )
    config = {"kubeConfigPath": str(kubernetes.kubeconfig)}
    plugin = {"name": "kubernetes", "deployTargets": [{"name": "here", "config": config}]}
    rest = f"  plugins: {json.dumps([plugin])}\n  eventWatcher: {{checkInterval: 5s}}\n"
    notifications = "".join(
        f"  {line}\n" for line in notifications_config(receivers, mailbox).splitlines()
    )
    first = await installation.register_piped("one", rest + notifications)
    second = await installation.register_piped("two", rest)
    async with AsyncExitStack() as opened:
        running: list[Program] = []
        for agent in (first, second):
            piped = installation.running(
                OUR_PIPED, "run", f"--config-file={agent.config}", "--insecure=true",
                f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}",
                f"--workspace-dir={installation.directory / agent.id}",
            )  # fmt: skip
            running.append(await opened.enter_async_context(piped))
            await installation.eventually(
                lambda id_=agent.id: installation.introduced(id_), running[-1]
            )
        story = Story(installation, flags, kubernetes, namespace, running)
        ids: dict[str, str] = {}
        for name, agent in (("back", second), ("front", first)):
            targets = {"kubernetes": DeployTargets(deploy_targets=["here"])}
            draft = Application(name=name, piped_id=agent.id, deploy_targets_by_plugin=targets)
            ids[name] = await installation.add_application(name, draft)
        head = installation.origin.git("rev-parse", "HEAD")
        for name in ids:
            await story.eventually(lambda n=name: story.succeeded(ids[n], head, in_chain=True))
        deployment = await check_event(story, ids["front"], ids["back"])
        await check_notifications(story, deployment, receivers, mailbox)
        await check_drift(story, ids["front"], receivers)
        await check_plan_preview(story, installation.directory)


async def test_the_story_with_our_control_plane(
    open_installation: OpenInstallation, kubernetes: Kubernetes, namespace: str, receivers: Receivers, mailbox: Mailbox,
    free_port: Callable[[], int],
) -> None:  # fmt: skip
    async with open_installation() as installation:
        await run_story(
            installation,
            installation.pipectl_flags(),
            (kubernetes, namespace),
            (receivers, mailbox),
            free_port,
        )


async def test_the_story_with_a_control_plane_of_upstream(
    upstream_installation: UpstreamInstallation, kubernetes: Kubernetes, namespace: str, receivers: Receivers,
    mailbox: Mailbox, free_port: Callable[[], int],
) -> None:  # fmt: skip
    installation = upstream_installation
    flags = [
        "--address",
        installation.api_address,
        "--insecure",
        "--api-key",
        await installation.api_key(),
    ]
    async with installation.ops():
        await run_story(
            installation, flags, (kubernetes, namespace), (receivers, mailbox), free_port
        )
