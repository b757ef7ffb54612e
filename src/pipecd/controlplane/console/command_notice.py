# SPDX-License-Identifier: Apache-2.0
"""What became of something a person asked for."""

from dataclasses import dataclass

from pipecd.controlplane.console.piped_status import Agent
from pipecd.controlplane.console.status_badge import Mark, Tone
from pipecd.model.command import TRIGGERED_KEY, CommandKind, CommandStatus
from pipecd.proto.model.command_pb2 import Command

_NOUNS = {
    CommandKind.SYNC_APPLICATION: "sync",
    CommandKind.CHAIN_SYNC_APPLICATION: "sync",
    CommandKind.CANCEL_DEPLOYMENT: "cancellation",
    CommandKind.APPROVE_STAGE: "approval",
    CommandKind.SKIP_STAGE: "skip",
    CommandKind.RESTART_PIPED: "restart",
    CommandKind.BUILD_PLAN_PREVIEW: "plan preview",
    CommandKind.UPDATE_APPLICATION_CONFIG: "update",
}


@dataclass(frozen=True)
class Notice:
    """A sentence about a command; `deployment_id` is what it led to."""

    command_id: str
    mark: Mark
    text: str
    is_open: bool
    deployment_id: str = ""


def notice(command: Command, agent: Agent) -> Notice:
    """Where the command stands."""
    noun = _NOUNS[CommandKind(command.type)]
    status = CommandStatus(command.status)
    if status is CommandStatus.NOT_HANDLED_YET:
        return Notice(command.id, *_open(noun, agent), is_open=True)
    led_to = command.metadata.get(TRIGGERED_KEY, "")
    words = {
        CommandStatus.SUCCEEDED: (Tone.OK, "check", f"The {noun} you asked for was carried out."),
        CommandStatus.FAILED: (Tone.BAD, "cross", f"The {noun} you asked for failed."),
        CommandStatus.TIMEOUT: (
            Tone.BAD,
            "clock",
            f"Piped {agent.name} did not answer in time, so the {noun} was dropped. Ask again.",
        ),
    }
    tone, icon, text = words[status]
    if led_to and status is CommandStatus.SUCCEEDED:
        text = "The sync you asked for has started a deployment."
    return Notice(command.id, Mark(tone, icon, status.name.lower()), text, False, led_to)


def _open(noun: str, agent: Agent) -> tuple[Mark, str]:
    if agent.is_away:
        return (
            Mark(Tone.WAIT, "clock", "waiting"),
            f"The {noun} is noted, but piped {agent.name} is {agent.mark.word.lower()}; "
            "it is carried out when that piped is back.",
        )
    return (
        Mark(Tone.RUN, "run", "requested"),
        f"The {noun} is requested; piped {agent.name} picks it up in a moment.",
    )
