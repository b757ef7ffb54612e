# SPDX-License-Identifier: Apache-2.0
"""`pipectl login` and `pipectl context`: control planes that need no connection flags."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.model.errors import UserMistake
from pipecd.observe import log
from pipecd.pipectl.client import call, client_flags, connect, connection_flags, read_key
from pipecd.pipectl.contexts import Context, complete_context, load_contexts, save_contexts
from pipecd.pipectl.output import View, output_flag, print_document
from pipecd.proto.service import api_pb2 as pb


@click.command("login")
@flags.every_command
@client_flags
def login(log_level: str, log_encoding: str, **given: Any) -> None:
    """Check an API key and use it in further commands."""
    log.configure(log_level, log_encoding, program="pipectl")
    settings = connection_flags(given)
    if not settings["address"]:
        raise UserMistake("--address is not set", hint="write host:port, such as cd:443")
    if not (settings["api_key"] or settings["api_key_file"]):
        settings["api_key"] = _ask_for_key()
        if not settings["api_key"]:
            raise UserMistake("there is no API key", hint="type it, or set --api-key-file")

    async def check() -> None:
        async with connect(**settings) as connection:
            await call(connection.api.ListApplications(pb.ListApplicationsRequest(limit=1)))

    asyncio.run(check())
    key = settings["api_key"] or read_key(settings["api_key_file"])
    name, context = new_context(given, key)
    save_contexts(load_contexts().with_context(name, context))
    click.echo(f"Logged in to {context.address}; further commands use the context {name}.")


def new_context(given: Mapping[str, Any], key: str) -> tuple[str, Context]:
    """The context of the flags and its name: that of --context, or else the address.

    The path of the certificate is stored in full, because commands run in other directories, too.
    """
    certificate = given["cert_file"]
    context = Context(
        address=given["address"],
        api_key=key,
        insecure=given["insecure"],
        cert_file=str(Path(certificate).absolute()) if certificate else "",
    )
    return given["context"] or context.address, context


def _ask_for_key() -> str:
    if sys.stdin.isatty():
        return click.prompt("API key", hide_input=True, err=True)
    return sys.stdin.readline().strip()


@click.group("context")
def context() -> None:
    """Work with the control planes that you have logged in to."""


@context.command("list")
@flags.every_command
@output_flag
def list_(output: str, **_: object) -> None:
    """List the contexts; a star marks the current one."""
    contexts = load_contexts()
    view = View(
        {
            " ": lambda name: "*" if name == contexts.current else " ",
            "NAME": str,
            "ADDRESS": lambda name: contexts.get(name).address,
        },
        name=str,
    )
    document = {
        "current": contexts.current,
        "contexts": [
            {
                "name": name,
                "address": each.address,
                "insecure": each.insecure,
                "cert_file": each.cert_file,
            }
            for name, each in contexts.by_name.items()
        ],
    }
    print_document(output, json.dumps(document), list(contexts.by_name), view)


@context.command("use")
@flags.every_command
@click.argument("name", shell_complete=complete_context)
def use(name: str, **_: object) -> None:
    """Use the context NAME in further commands."""
    contexts = load_contexts().using(name)
    save_contexts(contexts)
    address = contexts.get(name).address
    of = f" of {address}" if address != name else ""
    click.echo(f"Further commands use the context {name}{of}.")


@context.command("delete")
@flags.every_command
@click.argument("name", shell_complete=complete_context)
def delete(name: str, **_: object) -> None:
    """Forget the context NAME and its API key."""
    contexts = load_contexts().without(name)
    save_contexts(contexts)
    click.echo(f"Deleted the context {name} with its API key.")
    if contexts.by_name and not contexts.current:
        click.echo("Choose another with `pipectl context use`.")
