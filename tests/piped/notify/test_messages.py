# SPDX-License-Identifier: Apache-2.0
"""Every notice has its words, its links and those it mentions."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.piped.notification import TemplateSpec
from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.piped.notify.mentions import mentions_of
from pipecd.piped.notify.message import Console, Message, Mood, compose
from pipecd.piped.notify.notice import Notice, NoticeKind
from pipecd.piped.notify.outbox import Letter
from pipecd.piped.notify.template import check, variables
from pipecd.piped.notify.transition import deployment_is, triggered
from pipecd.piped.notify.wording import Wording
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentMetadata, DeploymentTrigger

Kinds = dict[NoticeKind, Notice]
CONSOLE = Console("https://cd.example.com/", "shop")


def words(notice: Notice, *templates: TemplateSpec) -> Message:
    return Wording(CONSOLE, templates).of(Letter(notice), str)


K = NoticeKind


@pytest.mark.parametrize(
    ("kind", "title", "text", "mood"),
    [
        pytest.param(K.DEPLOYMENT_TRIGGERED, 'Triggered a new deployment for "cart"', "", Mood.NEUTRAL, id="triggered"),
        pytest.param(K.DEPLOYMENT_PLANNED, 'Deployment for "cart" was planned', "Quick sync", Mood.NEUTRAL, id="planned"),
        pytest.param(K.DEPLOYMENT_STARTED, 'Deployment for "cart" was started', "", Mood.NEUTRAL, id="started"),
        pytest.param(K.DEPLOYMENT_WAIT_APPROVAL, 'Deployment for "cart" is waiting for an approval', "", Mood.NEUTRAL, id="waiting for approval"),
        pytest.param(K.DEPLOYMENT_APPROVED, 'Deployment for "cart" was approved', "Approved by bob, eve", Mood.NEUTRAL, id="approved"),
        pytest.param(K.DEPLOYMENT_ROLLING_BACK, 'Deployment for "cart" is being rolled back', "it is so", Mood.UNEASY, id="rolling back"),
        pytest.param(K.DEPLOYMENT_SUCCEEDED, 'Deployment for "cart" was completed successfully', "", Mood.GOOD, id="succeeded"),
        pytest.param(K.DEPLOYMENT_FAILED, 'Deployment for "cart" was failed', "it is so", Mood.BAD, id="failed"),
        pytest.param(K.DEPLOYMENT_CANCELLED, 'Deployment for "cart" was cancelled', "Cancelled by bob", Mood.UNEASY, id="cancelled"),
        pytest.param(K.DEPLOYMENT_TRIGGER_FAILED, "Failed to trigger a new deployment for cart", "no luck", Mood.BAD, id="not triggered"),
        pytest.param(K.APPLICATION_SYNCED, 'Application "cart" is in sync', "", Mood.GOOD, id="in sync"),
        pytest.param(K.APPLICATION_OUT_OF_SYNC, 'Application "cart" is out of sync', "two differences", Mood.UNEASY, id="out of sync"),
        pytest.param(K.APPLICATION_HEALTHY, 'Application "cart" is healthy', "", Mood.GOOD, id="healthy"),
        pytest.param(K.PIPED_STARTED, "A piped has been started", "", Mood.NEUTRAL, id="piped started"),
        pytest.param(K.PIPED_STOPPED, "A piped has been stopped", "", Mood.NEUTRAL, id="piped stopped"),
        pytest.param(K.STAGE_STARTED, 'Stage "K8S_CANARY" was started', "", Mood.NEUTRAL, id="stage started"),
        pytest.param(K.STAGE_SKIPPED, 'Stage "K8S_CANARY" was skipped', "so it is", Mood.NEUTRAL, id="stage skipped"),
        pytest.param(K.STAGE_SUCCEEDED, 'Stage "K8S_CANARY" was completed successfully', "", Mood.GOOD, id="stage succeeded"),
        pytest.param(K.STAGE_FAILED, 'Stage "K8S_CANARY" was failed', "so it is", Mood.BAD, id="stage failed"),
        pytest.param(K.STAGE_CANCELLED, 'Stage "K8S_CANARY" was cancelled', "", Mood.UNEASY, id="stage cancelled"),
    ],
)  # fmt: skip
def test_the_words_for(notices: Kinds, kind: K, title: str, text: str, mood: Mood) -> None:
    message = words(notices[kind])
    assert (message.title, message.text, message.mood) == (title, text, mood)


def test_every_kind_has_words(notices: Kinds) -> None:
    assert set(notices) == set(NoticeKind)
    assert all(words(notice).title for notice in notices.values())


DEPLOYMENT = "https://cd.example.com/deployments/deployment-1?project=shop"
APPLICATION = "https://cd.example.com/applications/app-1?project=shop"


@pytest.mark.parametrize(
    ("kind", "link", "fields"),
    [
        pytest.param(
            K.DEPLOYMENT_STARTED, DEPLOYMENT,
            ["Project", "Application", "Labels", "Deployment", "Triggered By", "Started At"],
            id="a deployment",
        ),
        pytest.param(
            K.STAGE_FAILED, DEPLOYMENT,
            ["Project", "Application", "Labels", "Deployment", "Stage", "Triggered By"],
            id="a stage",
        ),
        pytest.param(
            K.DEPLOYMENT_TRIGGER_FAILED, APPLICATION,
            ["Project", "Application", "Labels", "Commit"],
            id="a failed trigger",
        ),
        pytest.param(
            K.PIPED_STARTED, "https://cd.example.com/settings/piped?project=shop",
            ["Name", "Version", "Project", "Id"],
            id="piped",
        ),
    ],
)  # fmt: skip
def test_the_link_and_the_fields_of(notices: Kinds, kind: K, link: str, fields: list[str]) -> None:
    message = words(notices[kind])
    assert message.link == link
    assert [field.name for field in message.fields] == fields


def field_of(message: Message, name: str) -> Any:
    return next(field for field in message.fields if field.name == name)


def test_fields_lead_to_what_they_name(notices: Kinds) -> None:
    started = words(notices[K.DEPLOYMENT_STARTED])
    assert field_of(started, "Application").link == APPLICATION
    assert field_of(started, "Deployment").value == "deployme..."
    assert field_of(started, "Labels").value == "env=prod"
    assert field_of(started, "Triggered By").value == "ann"
    commit = field_of(words(notices[K.DEPLOYMENT_TRIGGER_FAILED]), "Commit")
    assert commit.value == "a change"
    assert commit.link == "https://github.com/shop/site/commit/abc123"


def test_an_application_of_the_first_generation_shows_its_kind(
    about_deployment: Callable[..., Deployment],
) -> None:
    notice = triggered(about_deployment(kind=5, platform_provider="p"))
    assert field_of(words(notice), "Kind").value == "ecs"


def test_a_person_who_asked_for_a_deployment_triggered_it(
    about_deployment: Callable[..., Deployment],
) -> None:
    notice = triggered(about_deployment(trigger=DeploymentTrigger(commander="eve")))
    assert field_of(words(notice), "Triggered By").value == "eve"


def test_without_the_address_of_the_console_nothing_leads_there(notices: Kinds) -> None:
    message = compose(notices[K.DEPLOYMENT_STARTED], Console("", "shop"), str)
    assert message.link == ""
    assert not any(field.link for field in message.fields)


def test_nobody_who_cancelled_leaves_the_reason(
    about_deployment: Callable[..., Deployment],
) -> None:
    assert words(deployment_is(about_deployment(status=6))).text == "it is so"


@pytest.mark.parametrize("kind", [K.DEPLOYMENT_FAILED, K.STAGE_FAILED, K.DEPLOYMENT_ROLLING_BACK])
def test_mentions_come_from_the_deployment(notices: Kinds, kind: NoticeKind) -> None:
    mentions = words(notices[kind]).mentions
    assert (mentions.users, mentions.groups) == (("U1",), ("G1",))
    assert "ann@example.com" in mentions.emails


def test_a_failed_trigger_mentions_those_it_names(notices: Kinds) -> None:
    mentions = words(notices[K.DEPLOYMENT_TRIGGER_FAILED]).mentions
    assert (mentions.users, mentions.groups) == (("U1",), ("G1",))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="none"),
        pytest.param("{", id="no JSON"),
        pytest.param('{"mentions":[{"event":"NO_SUCH"}]}', id="an event of another version"),
        pytest.param('{"mentions":null}', id="upstream's way to say none"),
    ],
)
def test_mentions_that_cannot_be_read_mention_nobody(
    about_deployment: Callable[..., Deployment], text: str
) -> None:
    kept = DeploymentMetadata.KeyValues(keyValues={"DeploymentNotification": text})
    made = about_deployment(metadata_v2=DeploymentMetadata(shared=kept))
    assert mentions_of(made, K.DEPLOYMENT_FAILED).users == ()


def test_mentions_of_a_deployment_of_the_first_generation_are_found(
    about_deployment: Callable[..., Deployment],
) -> None:
    made = about_deployment(metadata_v2=None, metadata={"DeploymentNotification": '{"mentions":[{"event":"*","slack":["U9"]}]}'})  # fmt: skip
    assert mentions_of(made, K.DEPLOYMENT_FAILED).users == ("U9",)


EVERYTHING = (
    "{{ .Event }} {{ .Group }} {{ .Title }} {{ .Text }} {{ .Link }} {{ .Labels }} {{ .Project }} "
    "{{ .Application }} {{ .ApplicationID }} {{ .Deployment }} {{ .Stage }} {{ .Summary }} "
    "{{ .Reason }} {{ .TriggeredBy }} {{ .Commander }} {{ .Approver }} {{ .CommitHash }} "
    "{{ .CommitMessage }} {{ .CommitURL }} {{ .Branch }} {{ .Piped }} {{ .Version }}"
)


def test_every_variable_can_be_used_for_every_kind(notices: Kinds) -> None:
    for notice in notices.values():
        message = words(notice, TemplateSpec(title="t", text=EVERYTHING))
        assert message.title == "t"
        assert message.text.startswith(notice.kind.name)


def test_a_template_replaces_the_words_of_its_event(notices: Kinds) -> None:
    template = TemplateSpec(
        event="DEPLOYMENT_FAILED",
        title="{{ .Application | upper }} broke",
        text="{{ .Reason }} ({{ .Labels.env }}, {{ .CommitHash | trunc 3 }} by {{ .TriggeredBy }})",
    )
    failed = words(notices[K.DEPLOYMENT_FAILED], template)
    assert (failed.title, failed.text) == ("CART broke", "it is so (prod, abc by ann)")
    assert words(notices[K.STAGE_FAILED], template).title == 'Stage "K8S_CANARY" was failed'


def test_an_empty_part_of_a_template_keeps_the_usual_words(notices: Kinds) -> None:
    message = words(notices[K.DEPLOYMENT_PLANNED], TemplateSpec(title="new"))
    assert (message.title, message.text) == ("new", "Quick sync")


def test_the_templates_of_a_route_come_before_those_of_the_receiver(notices: Kinds) -> None:
    wording = Wording(CONSOLE, (TemplateSpec(title="receiver"),))
    letter = Letter(notices[K.DEPLOYMENT_FAILED], (TemplateSpec(title="route"),))
    assert wording.of(letter, str).title == "route"


def test_a_template_that_cannot_be_rendered_leaves_the_usual_words(notices: Kinds) -> None:
    message = words(notices[K.DEPLOYMENT_FAILED], TemplateSpec(text="{{ .NoSuch }}"))
    assert message.text == "it is so"


def test_a_template_that_cannot_be_parsed_is_refused_by_name() -> None:
    with pytest.raises(TemplateMistake, match="receiver team, template for STAGE_FAILED"):
        check([TemplateSpec(event="STAGE_FAILED", text="{{ .Text")], of="receiver team")


def test_what_others_wrote_is_escaped_and_what_the_operator_wrote_is_not(
    about_deployment: Callable[..., Deployment],
) -> None:
    notice = deployment_is(about_deployment(status=5, status_reason="<!channel>"))
    wording = Wording(CONSOLE, (TemplateSpec(text="<https://runbook|help> {{ .Reason }}"),))
    text = wording.of(Letter(notice), lambda text: text.replace("<", "&lt;")).text
    assert text == "<https://runbook|help> &lt;!channel>"


GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "notifications.md"


def test_the_guide_names_every_variable(notices: Kinds) -> None:
    notice = notices[K.DEPLOYMENT_FAILED]
    known = variables(compose(notice, CONSOLE, str), notice, str)
    _, _, section = GUIDE.read_text().partition("| Variable | Meaning |")
    assert set(re.findall(r"`\.(\w+)`", section)) == set(known)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("{{ .Application }} ({{ .Labels.env }}) is broken", "cart (prod) is broken", id="the sample"),
        pytest.param('[{{ get .Labels "zone" }}]', "[]", id="a label that may be missing"),
        pytest.param("{{ if .Stage }}{{ .Stage }}{{ else }}no stage{{ end }}", "no stage", id="a choice"),
    ],
)  # fmt: skip
def test_what_the_guide_shows_works(notices: Kinds, text: str, shown: str) -> None:
    message = words(notices[K.DEPLOYMENT_FAILED], TemplateSpec(text=text))
    assert message.text == shown
