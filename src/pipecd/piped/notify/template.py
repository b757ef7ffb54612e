# SPDX-License-Identifier: Apache-2.0
"""The words of an operator in place of the usual ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from pipecd.config.application.notification import ANY_EVENT
from pipecd.config.piped.notification import TemplateSpec
from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.gotemplate.parser import parse
from pipecd.gotemplate.template import render
from pipecd.model.deployment import triggered_by
from pipecd.piped.notify.message import Escape, Message, reason_of
from pipecd.piped.notify.notice import Notice
from pipecd.piped.notify.subject import said, subject_of

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def check(templates: Sequence[TemplateSpec], *, of: str) -> None:
    """Refuses templates that cannot be parsed."""
    for template in templates:
        for text in (template.title, template.text):
            parse(text, name=f"{of}, template for {template.event}")


def reword(
    message: Message, notice: Notice, templates: Sequence[TemplateSpec], escape: Escape
) -> Message:
    """The message in the words of the first template for its event, if there is one."""
    for template in templates:
        if template.event in (ANY_EVENT, notice.kind.name):
            return _reword(message, notice, template, escape)
    return message


def _reword(message: Message, notice: Notice, template: TemplateSpec, escape: Escape) -> Message:
    data = variables(message, notice, escape)
    name = f"template for {template.event}"
    try:
        return replace(
            message,
            title=render(template.title, data, name=name) if template.title else message.title,
            text=render(template.text, data, name=name) if template.text else message.text,
        )
    except TemplateMistake as e:
        # People had better hear of it in the usual words than not at all.
        log.warning("a template of notifications cannot be rendered", error=str(e))
        return message


def variables(message: Message, notice: Notice, escape: Escape) -> Mapping[str, Any]:
    """What templates can name; whatever a notice has nothing to say about is empty."""
    about, facts = subject_of(notice.facts), notice.facts
    deployment, stage = about.deployment, about.stage
    commit = deployment.trigger.commit if deployment is not None else None
    texts = {
        "Project": about.project,
        "Application": about.application,
        "ApplicationID": about.application_id,
        "Deployment": deployment.id if deployment is not None else "",
        "Stage": stage.name if stage is not None else "",
        "Summary": deployment.summary if deployment is not None else "",
        "Reason": reason_of(notice, about),
        "TriggeredBy": triggered_by(deployment) if deployment is not None else "",
        "Commander": said(facts, "commander"),
        "Approver": said(facts, "approver"),
        "CommitHash": commit.hash if commit is not None else said(facts, "commit_hash"),
        "CommitMessage": commit.message if commit is not None else said(facts, "commit_message"),
        "CommitURL": commit.url if commit is not None else "",
        "Branch": commit.branch if commit is not None else "",
        "Piped": said(facts, "name"),
        "Version": said(facts, "version"),
    }
    return {
        "Event": notice.kind.name,
        "Group": notice.kind.group,
        "Title": message.title,
        "Text": message.text,
        "Link": message.link,
        "Labels": {key: escape(value) for key, value in (about.labels or {}).items()},
        **{name: escape(text) for name, text in texts.items()},
    }
