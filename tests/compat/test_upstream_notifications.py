# SPDX-License-Identifier: Apache-2.0
"""Receivers written for upstream's piped understand the notifications of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.piped.notify.event import EventType
from pipecd.proto.model.application_pb2 import Application
from servers.our_installation import OpenInstallation, OurInstallation
from servers.programs import OUR_PIPED
from servers.receivers import Receivers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("upstream")]

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  labels: {env: prod}
  planner: {alwaysUsePipeline: true}
  notification:
    mentions:
      - {event: DEPLOYMENT_SUCCEEDED, slackUsers: [U1], slackGroups: [G1]}
  pipeline:
    stages:
      - {name: WAIT, with: {duration: 1s}}
      - {name: WAIT_APPROVAL, with: {approvers: [admin]}}
"""
PLUGINS = ("wait", "waitapproval")
MENTIONS = {"mentioned_accounts", "mentioned_groups"}
SLACK_MENTIONS = {"Mention To Users", "Mention To Groups"}

Notifications = dict[str, Any]


async def story(
    installation: OurInstallation,
    piped: Path,
    receivers: Receivers,
    rest: str,
    flags: tuple[str, ...],
) -> tuple[Notifications, Notifications]:
    """Runs one deployment; returns the notifications to a webhook and to Slack, by event."""
    name = "ours" if piped == OUR_PIPED else "theirs"
    notifications = f"""\
  webAddress: https://cd.example.com
  notifications:
    routes: [{{name: a, receiver: program}}, {{name: b, receiver: slack}}]
    receivers:
      - name: program
        webhook: {{url: "{receivers.url(f"/{name}")}", signatureValue: shared}}
      - name: slack
        slack: {{hookURL: "{receivers.url(f"/{name}-slack")}", mentionedAccounts: ["@U2"]}}
"""
    commit = installation.origin.commit({f"{name}/app.pipecd.yaml": APP}, f"by {name}")
    agent = await installation.register_piped(name, rest + notifications)
    await installation.add_application(name, Application(name="cart", piped_id=agent.id))
    async with installation.running(piped, "run", f"--config-file={agent.config}", "--insecure=true", *flags) as running:  # fmt: skip
        waiting = await installation.eventually(
            lambda: installation.stage(commit, "WAIT_APPROVAL"), running
        )
        await installation.cases.deployments.approve(*waiting, by=installation.admin)
        done = await installation.eventually(lambda: installation.ended(commit), running)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
    facts, words = receivers.at(f"/{name}"), receivers.at(f"/{name}-slack")
    assert all(d.headers["pipecd-signature"] == "shared" for d in facts)
    assert all(list(d.json) == ["Type", "Metadata"] and d.body.endswith(b"}\n") for d in facts)
    kinds = [EventType(d.json["Type"]).name for d in facts]
    assert len(facts) == len(words)
    return (
        {kind: d.json["Metadata"] for kind, d in zip(kinds, facts, strict=True)},
        {d.json["attachments"][0]["title"]: d.json for d in words},
    )


async def test_a_program_and_slack_see_the_same_as_from_upstream(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    receivers: Receivers,
    upstream_pipedv1: Path,
    upstream_plugins: Path,
) -> None:
    async with open_installation() as installation:
        received: list[tuple[Notifications, Notifications]] = []
        for piped in (upstream_pipedv1, OUR_PIPED):
            entries = "".join(
                f"    - {{name: {name}, url: 'file://{upstream_plugins / name}', port: {free_port()}}}\n"
                for name in PLUGINS
            )
            flags = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
            received.append(
                await story(installation, piped, receivers, f"  plugins:\n{entries}", flags)
            )
    (their_facts, their_words), (our_facts, our_words) = received
    assert set(their_facts) <= set(our_facts)
    for kind, theirs in their_facts.items():
        # Upstream mentions the users of other events, and those meant for Slack only.
        assert set(our_facts[kind]) - MENTIONS == set(theirs) - MENTIONS, kind
        assert set(theirs.get("deployment", {})) - {"running_commit_hash", "metadata"} <= set(our_facts[kind].get("deployment", {})), kind  # fmt: skip
    assert our_facts["DEPLOYMENT_SUCCEEDED"]["mentioned_accounts"] == ["U1"]
    assert our_facts["DEPLOYMENT_APPROVED"]["approver"] == their_facts["DEPLOYMENT_APPROVED"]["approver"]  # fmt: skip
    assert set(their_words) <= set(our_words)
    for title, theirs in their_words.items():
        same_words(our_words[title], theirs)


def same_words(ours: Any, theirs: Any) -> None:
    assert set(theirs) == set(ours)
    assert theirs["username"] == ours["username"]
    (their_attachment,), (our_attachment,) = theirs["attachments"], ours["attachments"]
    title = their_attachment["title"]
    assert set(their_attachment) - {"text"} <= set(our_attachment), title
    for key in ("color", "mrkdwn_in"):
        assert their_attachment[key] == our_attachment[key], title
    assert their_attachment["title_link"].split("/")[:4] == our_attachment["title_link"].split("/")[:4]  # fmt: skip
    names = [{f["title"] for f in a["fields"] if f["value"]} for a in (their_attachment, our_attachment)]  # fmt: skip
    assert names[0] - SLACK_MENTIONS == names[1] - SLACK_MENTIONS, title
    assert all(field["short"] for field in our_attachment["fields"])
