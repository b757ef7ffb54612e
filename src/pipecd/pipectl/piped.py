# SPDX-License-Identifier: Apache-2.0
"""`pipectl piped`: register, list, get, enable, disable."""

import asyncio
import base64
from contextlib import suppress
from pathlib import Path

import click

from pipecd.commandline import flags
from pipecd.model.errors import Unsupported, UserMistake
from pipecd.pipectl import completion
from pipecd.pipectl.client import (
    Api,
    Connection,
    attempt,
    call_or_print,
    logger,
    print_json,
    with_api,
    with_connection,
)
from pipecd.pipectl.output import (
    View,
    id_output_flag,
    output_flag,
    print_id,
    print_result,
    printable,
)
from pipecd.pipectl.views import PIPEDS
from pipecd.program.atomic_write import write_private
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.piped_list_pb2 import ListPipedsRequest, ListPipedsResponse

_REGISTERED = View({"ID": lambda r: r.id, "KEY": lambda r: r.key}, name=lambda r: r.id)
_CONFIGURATION = """\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: {project}
  pipedID: {id}
  pipedKeyData: {key}
  apiAddress: {address}
  # The repositories that this piped watches.
  repositories: []
  # - repoID: apps
  #   remote: git@github.com:example/apps.git
  #   branch: main
  # The plugins that it deploys with.
  plugins:
    - name: wait
    - name: waitapproval
    - name: scriptrun
"""
_PIPED = flags.text("piped-id", "The piped.", required=True, complete=completion.pipeds)


@click.group()
def piped() -> None:
    """Work with pipeds."""


@piped.command("register", short_help="Register a piped and print its id and key.")
@with_connection
@flags.text("name", "The name of the piped.", required=True)
@flags.text("desc", "What it is for.")
@flags.text("config-out", "A new file for a configuration to begin with, its key included.")
@output_flag
async def register(
    connection: Connection, name: str, desc: str, config_out: str, output: str
) -> None:
    """Register a piped and print its id and key; the key cannot be read again."""
    api, path = connection.api, Path(config_out)
    if config_out and await asyncio.to_thread(path.exists):
        raise UserMistake(f"{config_out} exists already", hint="name a new file")
    request = pb.RegisterPipedRequest(name=name, desc=desc)
    registered = await attempt("register piped", api.RegisterPiped(request))
    print_result(output, registered, [registered], _REGISTERED)
    if not config_out:
        return
    got = await attempt("get piped", api.GetPiped(pb.GetPipedRequest(piped_id=registered.id)))
    text = _CONFIGURATION.format(
        project=got.piped.project_id,
        id=registered.id,
        key=base64.b64encode(registered.key.encode()).decode(),
        address=connection.address,
    )
    try:
        await asyncio.to_thread(write_private, path, text.encode())
    except OSError as e:
        raise UserMistake(f"cannot write {config_out}: {e.strerror}") from e
    insecure = " --insecure" if connection.insecure else ""
    command = f"piped run --config-file {config_out}{insecure}"
    logger.info(f"Add your repositories to {config_out}, then: {command}")


@piped.command("list")
@with_connection
@output_flag
async def list_(connection: Connection, output: str) -> None:
    """List the pipeds of the project, the oldest first."""
    answer = connection.own_rpc("ListPipeds", ListPipedsRequest(), ListPipedsResponse)
    listed = await attempt("list pipeds", answer)
    print_result(output, listed, listed.pipeds, PIPEDS)
    _warn_of_unusable_plugins(listed)


@piped.command("get", short_help="Show a piped.")
@with_connection
@_PIPED
@output_flag
async def get(connection: Connection, piped_id: str, output: str) -> None:
    """Show a piped; warn of the plugins and deploy targets that it runs without."""
    request = pb.GetPipedRequest(piped_id=piped_id)
    got = await attempt("get piped", connection.api.GetPiped(request))
    print_result(output, got.piped, [got.piped], PIPEDS)
    only = ListPipedsRequest(piped_id=piped_id)
    with suppress(Unsupported):
        answer = connection.own_rpc("ListPipeds", only, ListPipedsResponse)
        _warn_of_unusable_plugins(await attempt("list the plugins that it runs without", answer))


def _warn_of_unusable_plugins(listed: ListPipedsResponse) -> None:
    names = {piped.id: piped.name for piped in listed.pipeds}
    for unusable in listed.unusable:
        for failure in unusable.failures:
            what = f"plugin {failure.plugin} is not running"
            if failure.target:
                what = f"deploy target {failure.target} of plugin {failure.plugin} is unusable"
            logger.warning(printable(f"piped {names[unusable.piped_id]}: {what}: {failure.reason}"))


@piped.command("enable")
@with_api
@_PIPED
@id_output_flag
async def enable(api: Api, piped_id: str, output: str | None) -> None:
    """Let a piped work again."""
    answer = api.EnablePiped(pb.EnablePipedRequest(piped_id=piped_id))
    await call_or_print(lambda e: f"Failed to enable Piped {piped_id} ({e})", answer)
    if output is None:
        print_json(f"Successfully enabled Piped {piped_id}")
    print_id(output, "piped_id", piped_id)


@piped.command("disable")
@with_api
@_PIPED
@id_output_flag
async def disable(api: Api, piped_id: str, output: str | None) -> None:
    """Keep a piped from working."""
    answer = api.DisablePiped(pb.DisablePipedRequest(piped_id=piped_id))
    await call_or_print(lambda e: f"Failed to disable Piped {piped_id} ({e})", answer)
    if output is None:
        print_json(f"Successfully disabled Piped {piped_id}")
    print_id(output, "piped_id", piped_id)
