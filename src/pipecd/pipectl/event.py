# SPDX-License-Identifier: Apache-2.0
"""`pipectl event register`."""

import re
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.model.errors import UserMistake
from pipecd.pipectl.client import Api, attempt, logger, with_api
from pipecd.pipectl.output import id_output_flag, print_id
from pipecd.proto.service import api_pb2 as pb

_CONTEXT_KEY = re.compile(r"^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$")


@click.group()
def event() -> None:
    """Work with events."""


@event.command("register")
@with_api
@flags.text("name", "The name of the event.", required=True)
@flags.text("data", "The new value.", required=True)
@flags.pairs("labels", "Labels, as k=v,k2=v2.")
@flags.pairs("contexts", "Trailers of the commit it leads to, as k=v,k2=v2.")
@flags.text("commit-hash", "The commit that caused the event.")
@flags.text("commit-title", "The title of that commit.")
@flags.text("commit-message", "The message of that commit.")
@flags.text("commit-url", "The page of that commit.")
@flags.text("commit-author", "The author of that commit.")
@flags.number("commit-timestamp", "When it was made, in unix seconds.", default=0)
@id_output_flag
async def register(api: Api, output: str | None, **given: Any) -> None:
    """Tell pipeds about something new, such as an image."""
    for key in given["contexts"]:
        if not _CONTEXT_KEY.fullmatch(key):
            raise UserMistake(
                f"failed to validate event context: invalid format key '{key}', "
                f"should be {_CONTEXT_KEY.pattern}"
            )
    answer = await attempt("register event", api.RegisterEvent(pb.RegisterEventRequest(**given)))
    logger.info("Successfully registered event", id=answer.event_id)
    print_id(output, "event_id", answer.event_id)
