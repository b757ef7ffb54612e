# SPDX-License-Identifier: Apache-2.0
"""The piped that looks after something, and whether it is there."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipecd.controlplane.console.status_badge import Mark, Tone
from pipecd.proto.model.piped_pb2 import Piped


@dataclass(frozen=True)
class Agent:
    """A piped; `name` falls back to its id, which is all that is known of a removed one."""

    id: str
    name: str
    mark: Mark
    is_away: bool
    # Whether the reader can open its page.
    has_page: bool = True


def agent(piped_id: str, pipeds: Iterable[Piped] | None) -> Agent:
    """The piped of that id among those of the project; None when the reader may not see them."""
    if pipeds is None:
        not_shown = Mark(Tone.OFF, "dot", "Not shown")
        return Agent(piped_id, piped_id[:8], not_shown, is_away=False, has_page=False)
    found = next((piped for piped in pipeds if piped.id == piped_id), None)
    if found is None:
        gone = Mark(Tone.OFF, "dot", "Not registered")
        return Agent(piped_id, piped_id[:8], gone, is_away=True, has_page=False)
    if found.disabled:
        return Agent(found.id, found.name, Mark(Tone.OFF, "dot", "Disabled"), is_away=True)
    match found.status:
        case Piped.ONLINE:
            return Agent(found.id, found.name, Mark(Tone.OK, "dot", "Online"), is_away=False)
        case Piped.OFFLINE:
            return Agent(found.id, found.name, Mark(Tone.BAD, "dot", "Offline"), is_away=True)
        case _:
            return Agent(found.id, found.name, Mark(Tone.OFF, "dot", "Not seen"), is_away=False)
