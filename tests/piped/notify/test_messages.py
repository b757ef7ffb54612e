# SPDX-License-Identifier: Apache-2.0
"""Every event type has a default message, links and mentions, and templates replace them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.piped_notifications import TemplateSpec
from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.piped.notify.deployment_events import deployment_event, triggered_event
from pipecd.piped.notify.event import EventType, NotificationEvent, mentions_of
from pipecd.piped.notify.message import ConsoleLinks, Message, Severity, compose
from pipecd.piped.notify.outbox import Delivery
from pipecd.piped.notify.template import MessageRenderer, template_variables, validate_templates
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentMetadata, DeploymentTrigger

Events = dict[EventType, NotificationEvent]
CONSOLE = ConsoleLinks("https://cd.example.com/", "shop")


def render(event: NotificationEvent, *templates: TemplateSpec) -> Message:
    return MessageRenderer(CONSOLE, templates).render(Delivery(event), str)


K = EventType


@pytest.mark.parametrize(
    ("kind", "title", "text", "severity"),
    [
        pytest.param(K.DEPLOYMENT_TRIGGERED, 'Triggered a new deployment for "cart"', "", Severity.INFO, id="triggered"),
        pytest.param(K.DEPLOYMENT_PLANNED, 'Deployment for "cart" was planned', "Quick sync", Severity.INFO, id="planned"),
        pytest.param(K.DEPLOYMENT_STARTED, 'Deployment for "cart" was started', "", Severity.INFO, id="started"),
        pytest.param(K.DEPLOYMENT_WAIT_APPROVAL, 'Deployment for "cart" is waiting for an approval', "", Severity.INFO, id="waiting for approval"),
        pytest.param(K.DEPLOYMENT_APPROVED, 'Deployment for "cart" was approved', "Approved by bob, eve", Severity.INFO, id="approved"),
        pytest.param(K.DEPLOYMENT_ROLLING_BACK, 'Deployment for "cart" is being rolled back', "it is so", Severity.WARNING, id="rolling back"),
        pytest.param(K.DEPLOYMENT_SUCCEEDED, 'Deployment for "cart" was completed successfully', "", Severity.SUCCESS, id="succeeded"),
        pytest.param(K.DEPLOYMENT_FAILED, 'Deployment for "cart" was failed', "it is so", Severity.ERROR, id="failed"),
        pytest.param(K.DEPLOYMENT_CANCELLED, 'Deployment for "cart" was cancelled', "Cancelled by bob", Severity.WARNING, id="cancelled"),
        pytest.param(K.DEPLOYMENT_TRIGGER_FAILED, "Failed to trigger a new deployment for cart", "no luck", Severity.ERROR, id="not triggered"),
        pytest.param(K.APPLICATION_SYNCED, 'Application "cart" is in sync', "", Severity.SUCCESS, id="in sync"),
        pytest.param(K.APPLICATION_OUT_OF_SYNC, 'Application "cart" is out of sync', "two differences", Severity.WARNING, id="out of sync"),
        pytest.param(K.APPLICATION_HEALTHY, 'Application "cart" is healthy', "", Severity.SUCCESS, id="healthy"),
        pytest.param(K.PIPED_STARTED, "A piped has been started", "", Severity.INFO, id="piped started"),
        pytest.param(K.PIPED_STOPPED, "A piped has been stopped", "", Severity.INFO, id="piped stopped"),
        pytest.param(K.STAGE_STARTED, 'Stage "K8S_CANARY" was started', "", Severity.INFO, id="stage started"),
        pytest.param(K.STAGE_SKIPPED, 'Stage "K8S_CANARY" was skipped', "so it is", Severity.INFO, id="stage skipped"),
        pytest.param(K.STAGE_SUCCEEDED, 'Stage "K8S_CANARY" was completed successfully', "", Severity.SUCCESS, id="stage succeeded"),
        pytest.param(K.STAGE_FAILED, 'Stage "K8S_CANARY" was failed', "so it is", Severity.ERROR, id="stage failed"),
        pytest.param(K.STAGE_CANCELLED, 'Stage "K8S_CANARY" was cancelled', "", Severity.WARNING, id="stage cancelled"),
    ],
)  # fmt: skip
def test_title_text_and_severity(
    events: Events, kind: K, title: str, text: str, severity: Severity
) -> None:
    message = render(events[kind])
    assert (message.title, message.text, message.severity) == (title, text, severity)


def test_every_event_type_has_a_title(events: Events) -> None:
    assert set(events) == set(EventType)
    assert all(render(event).title for event in events.values())


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
def test_link_and_fields(events: Events, kind: K, link: str, fields: list[str]) -> None:
    message = render(events[kind])
    assert message.link == link
    assert [field.name for field in message.fields] == fields


def field_of(message: Message, name: str) -> Any:
    return next(field for field in message.fields if field.name == name)


def test_fields_link_to_their_pages(events: Events) -> None:
    started = render(events[K.DEPLOYMENT_STARTED])
    assert field_of(started, "Application").link == APPLICATION
    assert field_of(started, "Deployment").value == "deployme..."
    assert field_of(started, "Labels").value == "env=prod"
    assert field_of(started, "Triggered By").value == "ann"
    commit = field_of(render(events[K.DEPLOYMENT_TRIGGER_FAILED]), "Commit")
    assert commit.value == "a change"
    assert commit.link == "https://github.com/shop/site/commit/abc123"


def test_v0_applications_show_their_kind(
    new_deployment: Callable[..., Deployment],
) -> None:
    event = triggered_event(new_deployment(kind=5, platform_provider="p"))
    assert field_of(render(event), "Kind").value == "ecs"


def test_triggered_by_names_the_commander(
    new_deployment: Callable[..., Deployment],
) -> None:
    event = triggered_event(new_deployment(trigger=DeploymentTrigger(commander="eve")))
    assert field_of(render(event), "Triggered By").value == "eve"


def test_without_a_console_address_there_are_no_links(events: Events) -> None:
    message = compose(events[K.DEPLOYMENT_STARTED], ConsoleLinks("", "shop"), str)
    assert message.link == ""
    assert not any(field.link for field in message.fields)


def test_a_cancellation_without_a_commander_shows_the_reason(
    new_deployment: Callable[..., Deployment],
) -> None:
    assert render(deployment_event(new_deployment(status=6))).text == "it is so"


@pytest.mark.parametrize("kind", [K.DEPLOYMENT_FAILED, K.STAGE_FAILED, K.DEPLOYMENT_ROLLING_BACK])
def test_mentions_are_read_from_deployment_metadata(events: Events, kind: EventType) -> None:
    mentions = render(events[kind]).mentions
    assert (mentions.users, mentions.groups) == (("U1",), ("G1",))
    assert "ann@example.com" in mentions.emails


def test_a_failed_trigger_has_mentions(events: Events) -> None:
    mentions = render(events[K.DEPLOYMENT_TRIGGER_FAILED]).mentions
    assert (mentions.users, mentions.groups) == (("U1",), ("G1",))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="none"),
        pytest.param("{", id="no JSON"),
        pytest.param('{"mentions":[{"event":"NO_SUCH"}]}', id="an event of another version"),
        pytest.param('{"mentions":null}', id="null, which upstream writes for none"),
    ],
)
def test_invalid_mentions_are_ignored(new_deployment: Callable[..., Deployment], text: str) -> None:
    metadata = DeploymentMetadata.KeyValues(keyValues={"DeploymentNotification": text})
    created = new_deployment(metadata_v2=DeploymentMetadata(shared=metadata))
    assert mentions_of(created, K.DEPLOYMENT_FAILED).users == ()


def test_mentions_are_read_from_v0_metadata(
    new_deployment: Callable[..., Deployment],
) -> None:
    created = new_deployment(metadata_v2=None, metadata={"DeploymentNotification": '{"mentions":[{"event":"*","slack":["U9"]}]}'})  # fmt: skip
    assert mentions_of(created, K.DEPLOYMENT_FAILED).users == ("U9",)


EVERYTHING = (
    "{{ .Event }} {{ .Group }} {{ .Title }} {{ .Text }} {{ .Link }} {{ .Labels }} {{ .Project }} "
    "{{ .Application }} {{ .ApplicationID }} {{ .Deployment }} {{ .Stage }} {{ .Summary }} "
    "{{ .Reason }} {{ .TriggeredBy }} {{ .Commander }} {{ .Approver }} {{ .CommitHash }} "
    "{{ .CommitMessage }} {{ .CommitURL }} {{ .Branch }} {{ .Piped }} {{ .Version }}"
)


def test_every_template_variable_works_for_every_event_type(events: Events) -> None:
    for event in events.values():
        message = render(event, TemplateSpec(title="t", text=EVERYTHING))
        assert message.title == "t"
        assert message.text.startswith(event.type.name)


def test_a_template_replaces_the_default_message(events: Events) -> None:
    template = TemplateSpec(
        event="DEPLOYMENT_FAILED",
        title="{{ .Application | upper }} broke",
        text="{{ .Reason }} ({{ .Labels.env }}, {{ .CommitHash | trunc 3 }} by {{ .TriggeredBy }})",
    )
    failed = render(events[K.DEPLOYMENT_FAILED], template)
    assert (failed.title, failed.text) == ("CART broke", "it is so (prod, abc by ann)")
    assert render(events[K.STAGE_FAILED], template).title == 'Stage "K8S_CANARY" was failed'


def test_an_empty_template_field_keeps_the_default(events: Events) -> None:
    message = render(events[K.DEPLOYMENT_PLANNED], TemplateSpec(title="new"))
    assert (message.title, message.text) == ("new", "Quick sync")


def test_route_templates_precede_receiver_templates(events: Events) -> None:
    renderer = MessageRenderer(CONSOLE, (TemplateSpec(title="receiver"),))
    delivery = Delivery(events[K.DEPLOYMENT_FAILED], (TemplateSpec(title="route"),))
    assert renderer.render(delivery, str).title == "route"


def test_a_failing_template_falls_back_to_the_default_message(events: Events) -> None:
    message = render(events[K.DEPLOYMENT_FAILED], TemplateSpec(text="{{ .NoSuch }}"))
    assert message.text == "it is so"


def test_an_invalid_template_is_reported_by_name() -> None:
    with pytest.raises(TemplateMistake, match="receiver team, template for STAGE_FAILED"):
        validate_templates(
            [TemplateSpec(event="STAGE_FAILED", text="{{ .Text")], of="receiver team"
        )


def test_variables_are_escaped_and_template_text_is_not(
    new_deployment: Callable[..., Deployment],
) -> None:
    event = deployment_event(new_deployment(status=5, status_reason="<!channel>"))
    renderer = MessageRenderer(
        CONSOLE, (TemplateSpec(text="<https://runbook|help> {{ .Reason }}"),)
    )
    text = renderer.render(Delivery(event), lambda text: text.replace("<", "&lt;")).text
    assert text == "<https://runbook|help> &lt;!channel>"


GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "notifications.md"


def test_the_guide_names_every_variable(events: Events) -> None:
    event = events[K.DEPLOYMENT_FAILED]
    variables = template_variables(compose(event, CONSOLE, str), event, str)
    _, _, section = GUIDE.read_text().partition("| Variable | Meaning |")
    assert set(re.findall(r"`\.(\w+)`", section)) == set(variables)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("{{ .Application }} ({{ .Labels.env }}) is broken", "cart (prod) is broken", id="the sample"),
        pytest.param('[{{ get .Labels "zone" }}]', "[]", id="a label that may be missing"),
        pytest.param("{{ if .Stage }}{{ .Stage }}{{ else }}no stage{{ end }}", "no stage", id="a choice"),
    ],
)  # fmt: skip
def test_the_examples_of_the_guide_work(events: Events, text: str, shown: str) -> None:
    message = render(events[K.DEPLOYMENT_FAILED], TemplateSpec(text=text))
    assert message.text == shown
