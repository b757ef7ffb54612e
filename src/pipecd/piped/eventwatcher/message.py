# SPDX-License-Identifier: Apache-2.0
"""What a commit says about an event."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.gotemplate.printf import quote
from pipecd.gotemplate.template import render
from pipecd.piped.planning.deployment import TRACE_TRAILER
from pipecd.proto.model.event_pb2 import Event


@dataclass(frozen=True)
class Message:
    """The words of one event for a commit; `mistake` is why its template was not used."""

    template: str
    text: str
    trailers: Mapping[str, str]
    mistake: str = ""


def message_of(event: Event, template: str) -> Message:
    """What an event has to say; a template that is wrong is taken as it is, like upstream does."""
    trailers = dict(event.contexts)
    if event.trigger_commit_hash:
        trailers[TRACE_TRAILER] = event.trigger_commit_hash
    data = {"Value": event.data, "EventName": event.name}
    default = f"Replace values with {quote(event.data)} set by Event {quote(event.name)}"
    try:
        text = render(template, data, name="commitMessage").strip()
    except TemplateMistake as e:
        return Message(template, template.strip(), trailers, str(e))
    return Message(template, text or default, trailers)
