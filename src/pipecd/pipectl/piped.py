# SPDX-License-Identifier: Apache-2.0
"""`pipectl piped`: enable, disable."""

import click

from pipecd.commandline import flags
from pipecd.pipectl.client import Api, call_or_print, print_json, with_api
from pipecd.proto.service import api_pb2 as pb


@click.group()
def piped() -> None:
    """Work with pipeds."""


@piped.command("enable")
@with_api
@flags.text("piped-id", "The piped.", required=True)
async def enable(api: Api, piped_id: str) -> None:
    """Let a piped work again."""
    answer = api.EnablePiped(pb.EnablePipedRequest(piped_id=piped_id))
    await call_or_print(lambda e: f"Failed to enable Piped {piped_id} ({e})", answer)
    print_json(f"Successfully enabled Piped {piped_id}")


@piped.command("disable")
@with_api
@flags.text("piped-id", "The piped.", required=True)
async def disable(api: Api, piped_id: str) -> None:
    """Keep a piped from working."""
    answer = api.DisablePiped(pb.DisablePipedRequest(piped_id=piped_id))
    await call_or_print(lambda e: f"Failed to disable Piped {piped_id} ({e})", answer)
    print_json(f"Successfully disabled Piped {piped_id}")
