# SPDX-License-Identifier: Apache-2.0
"""Renders an event as a message, with the templates of the operator where there are any."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from pipecd.config.application import ANY_EVENT
from pipecd.config.piped_notifications import TemplateSpec
from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.gotemplate.parser import parse
from pipecd.gotemplate.template import render
from pipecd.model.deployment import triggered_by
from pipecd.piped.notify.event import NotificationEvent, subject_of, text_field
from pipecd.piped.notify.message import ConsoleLinks, Escape, Message, compose, reason_of
from pipecd.piped.notify.outbox import Delivery

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True)
class MessageRenderer:
    """Renders deliveries for one receiver, with its links and templates."""

    console: ConsoleLinks
    templates: tuple[TemplateSpec, ...] = ()

    def render(self, delivery: Delivery, escape: Escape) -> Message:
        """The message of a delivery; templates of its route precede those of the receiver."""
        event = delivery.event
        message = compose(event, self.console, escape)
        templates = (*delivery.templates, *self.templates)
        applicable = (t for t in templates if t.event in (ANY_EVENT, event.type.name))
        template = next(applicable, None)
        if template is None:
            return message
        data, name = template_variables(message, event, escape), f"template for {template.event}"
        try:
            return replace(
                message,
                title=render(template.title, data, name=name) if template.title else message.title,
                text=render(template.text, data, name=name) if template.text else message.text,
            )
        except TemplateMistake as e:
            # The default message is better than none.
            log.warning(
                "notification template failed, sending the default message",
                event_type=event.type.name,
                error=str(e),
            )
            return message


def validate_templates(templates: Sequence[TemplateSpec], *, of: str) -> None:
    """Raises if a template cannot be parsed."""
    for template in templates:
        for text in (template.title, template.text):
            parse(text, name=f"{of}, template for {template.event}")


def template_variables(
    message: Message, event: NotificationEvent, escape: Escape
) -> Mapping[str, Any]:
    """The variables of templates; those that an event does not have are empty."""
    subject, metadata = subject_of(event.metadata), event.metadata
    deployment, stage = subject.deployment, subject.stage
    commit = deployment.trigger.commit if deployment is not None else None
    texts = {
        "Project": subject.project,
        "Application": subject.application,
        "ApplicationID": subject.application_id,
        "Deployment": deployment.id if deployment is not None else "",
        "Stage": stage.name if stage is not None else "",
        "Summary": deployment.summary if deployment is not None else "",
        "Reason": reason_of(event, subject),
        "TriggeredBy": triggered_by(deployment) if deployment is not None else "",
        "Commander": text_field(metadata, "commander"),
        "Approver": text_field(metadata, "approver"),
        "CommitHash": commit.hash if commit is not None else text_field(metadata, "commit_hash"),
        "CommitMessage": (
            commit.message if commit is not None else text_field(metadata, "commit_message")
        ),
        "CommitURL": commit.url if commit is not None else "",
        "Branch": commit.branch if commit is not None else "",
        "Piped": text_field(metadata, "name"),
        "Version": text_field(metadata, "version"),
    }
    return {
        "Event": event.type.name,
        "Group": event.type.group,
        "Title": message.title,
        "Text": message.text,
        "Link": message.link,
        "Labels": {key: escape(value) for key, value in (subject.labels or {}).items()},
        **{name: escape(text) for name, text in texts.items()},
    }
