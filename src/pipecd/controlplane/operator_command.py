# SPDX-License-Identifier: Apache-2.0
"""The commands of the operator: projects, API keys, backups and copies, hashed passwords.

They open the stores of the configuration. On SQLite a running server has the database open, and
runs the operation instead.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from pipecd.commandline import flags
from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import create_installation, projects_from_config
from pipecd.controlplane.bus.relay import RelayBus
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.command import read_file, read_password
from pipecd.controlplane.datastore.copy import (
    begin_copy,
    copy_rows,
    finish_copy,
    is_unfinished_copy,
    refuse_rows,
    refuse_running_servers,
    refuse_unfinished_copy,
    refuse_without_projects,
)
from pipecd.controlplane.datastore.engines.sqlite_backup import back_up
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.filestore import Files
from pipecd.controlplane.filestore.copy import copy_files, refuse_files
from pipecd.controlplane.filestore.open import open_filestore
from pipecd.controlplane.operator.socket import run_on_server, socket_path
from pipecd.controlplane.stores import open_stores
from pipecd.controlplane.usecases import build_use_cases
from pipecd.controlplane.usecases.installation import KEY_ROLES, Arguments, Rows
from pipecd.model.clock import utc_now
from pipecd.model.count import counted
from pipecd.model.errors import UserMistake
from pipecd.observe.log import configure
from pipecd.observe.telemetry import Telemetry
from pipecd.secrets.keys import hash_key

F = TypeVar("F", bound=Callable[..., Any])

_CONNECT_SECONDS = 2.0


@click.group()
def project() -> None:
    """Add, list, show and change projects, and reset the password of their administrators."""


@click.group("api-key")
def api_key() -> None:
    """Add, list, change and disable the API keys of a project."""


def _operator_flags(command: F) -> F:
    for add in (
        flags.text("cache-address", "The Redis (host:port) that the replicas share."),
        flags.text("config-file", "The configuration of the control plane.", required=True),
        flags.shared(log_level="error"),
    ):
        command = add(command)
    return command


_OUTPUT = click.option(
    "--output",
    type=click.Choice(("table", "json", "yaml", "name")),
    default="table",
    show_default=True,
    help="The form of the result.",
)


@project.command("add")
@click.argument("id")
@flags.text("description", "What the project is for.")
@flags.text("admin-username", "The username of its administrator.", default="admin")
@flags.text("admin-password-file", "The file with the password; one is generated without it.")
@flags.text("shared-sso", "The name of the shared SSO configuration of the project.")
@_OUTPUT
@_operator_flags
def add_project(**options: Any) -> None:
    """Add a project and print the credentials of its administrator."""
    path = options["admin_password_file"]
    password = read_password(path, "--admin-password-file") if path else ""
    arguments = {
        "id": options["id"],
        "description": options["description"],
        "username": options["admin_username"],
        "password": password,
        "shared_sso": options["shared_sso"],
    }
    _print(_run(options, "add-project", arguments), options["output"])


@project.command("list")
@_OUTPUT
@_operator_flags
def list_projects(**options: Any) -> None:
    """List the projects."""
    _print(_run(options, "list-projects", {}), options["output"])


@project.command("show")
@click.argument("id")
@_OUTPUT
@_operator_flags
def show_project(**options: Any) -> None:
    """Show the settings of a project."""
    _print(_run(options, "show-project", {"id": options["id"]}), options["output"])


@project.command("update")
@click.argument("id")
@click.option("--description", help="What the project is for.")
@click.option("--shared-sso", help="The shared SSO configuration of the project; empty for none.")
@click.option(
    "--password",
    type=click.Choice(("enabled", "disabled")),
    help="Whether its administrator may sign in with a password.",
)
@click.option(
    "--users-without-role",
    type=click.Choice(("viewers", "refused")),
    help="What becomes of users of single sign-on who have no role.",
)
@_OUTPUT
@_operator_flags
def update_project(**options: Any) -> None:
    """Change settings of a project; flags that are not set change nothing.

    Projects are neither deleted nor disabled: their deployments, events and logs name them. Disable
    the pipeds and API keys of one that is no longer used.
    """
    names = ("description", "shared_sso", "password", "users_without_role")
    changes = {name: options[name] for name in names if options[name] is not None}
    if not changes:
        raise UserMistake("there is nothing to change", hint="set one of the flags; see --help")
    rows = _run(options, "update-project", {"id": options["id"], **changes})
    _print(rows, options["output"])


@project.command("reset-password")
@click.argument("id")
@_OUTPUT
@_operator_flags
def reset_password(**options: Any) -> None:
    """Set a new password for the administrator of a project, and end their sessions."""
    _print(_run(options, "reset-password", {"id": options["id"]}), options["output"])


@api_key.command("add")
@flags.text("project", "The project.", required=True)
@flags.text("name", "The name of the key.", required=True)
@click.option(
    "--role",
    type=click.Choice(tuple(KEY_ROLES)),
    default="READ_ONLY",
    show_default=True,
    help="What the key may do.",
)
@_operator_flags
def add_api_key(**options: Any) -> None:
    """Add an API key and print it; it cannot be read again."""
    arguments = {name: options[name] for name in ("project", "name", "role")}
    [row] = _run(options, "add-api-key", arguments)
    click.echo(row["key"])


@api_key.command("set-role")
@flags.text("project", "The project.", required=True)
@flags.text("id", "The id of the key, the part before its dot.", required=True)
@click.option(
    "--role", type=click.Choice(tuple(KEY_ROLES)), required=True, help="What the key may do."
)
@_operator_flags
def set_api_key_role(**options: Any) -> None:
    """Change what an API key may do, at once.

    READ_WRITE_APPROVE lets it approve and reject stages in the name of its creator, and
    MANAGE_SESSIONS lets it read, and list and end the sessions of users.
    """
    arguments = {name: options[name] for name in ("project", "id", "role")}
    _run(options, "set-api-key-role", arguments)


@api_key.command("list")
@flags.text("project", "The project.", required=True)
@_OUTPUT
@_operator_flags
def list_api_keys(**options: Any) -> None:
    """List the API keys of a project, without the keys themselves."""
    rows = _run(options, "list-api-keys", {"project": options["project"]})
    _print(rows, options["output"])


@api_key.command("disable")
@flags.text("project", "The project.", required=True)
@flags.text("id", "The id of the key, the part before its dot.", required=True)
@_operator_flags
def disable_api_key(**options: Any) -> None:
    """Disable an API key at once; it cannot be enabled again."""
    _run(options, "disable-api-key", {name: options[name] for name in ("project", "id")})


@click.command()
@flags.text("output-file", "The file to write; it must not exist.", required=True)
@flags.text("config-file", "The configuration of the control plane.", required=True)
@flags.shared(log_level="error")
def backup(**options: Any) -> None:
    """Copy the SQLite database of a control plane, while its server runs."""
    configure(options["log_level"], options["log_encoding"], program="controlplane.backup")
    file = options["config_file"]
    spec = read_control_plane(read_file(file, "configuration"), file=file)
    if spec.datastore.type != "SQLITE":
        tool = {"MYSQL": "mysqldump --single-transaction", "POSTGRESQL": "pg_dump"}
        raise UserMistake(
            f"this command copies SQLite databases, and the datastore is {spec.datastore.type}",
            hint=f"use {tool.get(spec.datastore.type, 'the tools of its server')}",
        )
    copy = Path(options["output_file"])
    size = back_up(Path(spec.datastore.config.path), copy)
    click.echo(f"{copy}: {size} bytes")


@click.command("copy-stores")
@flags.text("from-config-file", "The configuration of the stores to copy.", required=True)
@flags.text("config-file", "The configuration of the empty stores.", required=True)
@flags.shared(log_level="error")
def copy_stores(**options: Any) -> None:
    """Copy the datastore and the filestore of a control plane to others, while it is stopped.

    The stores may be of other types: a SQLite file and a directory become a database server and a
    bucket. Objects keep their ids, keys and history. The old stores are not changed, and the new
    ones must be empty. After an interruption no server starts on the new stores until the same
    command has been run again to its end.
    """
    configure(options["log_level"], options["log_encoding"], program="controlplane.copy-stores")
    old, new = (
        read_control_plane(read_file(file, "configuration", flag=flag), file=file)
        for file, flag in (
            (options["from_config_file"], "--from-config-file"),
            (options["config_file"], "--config-file"),
        )
    )
    if old.datastore == new.datastore:
        raise UserMistake(
            "both configurations have the same datastore",
            hint="write the new datastore, and a new filestore if you want, to another file",
        )
    if old.datastore.type == "SQLITE" and not Path(old.datastore.config.path).is_file():
        raise UserMistake(
            f"there is no database {old.datastore.config.path}",
            hint="check spec.datastore.config.path of the configuration of --from-config-file",
        )
    click.echo(asyncio.run(_copy_stores(old, new)))


async def _copy_stores(old: ControlPlaneSpec, new: ControlPlaneSpec) -> str:
    async with AsyncExitStack() as stack:
        enter, now = stack.enter_async_context, utc_now()
        source = await enter(open_datastore(old.datastore))
        target = await enter(open_datastore(new.datastore))
        await refuse_unfinished_copy(source)
        await refuse_running_servers(source, "old", now)
        await refuse_running_servers(target, "new", now)
        await refuse_without_projects(source)
        files: tuple[Files, Files] | None = None
        if old.filestore != new.filestore:
            files = (
                await enter(open_filestore(old.filestore)),
                await enter(open_filestore(new.filestore)),
            )
        if not await is_unfinished_copy(target):
            await refuse_rows(target)
            if files:
                await refuse_files(files[1])
        await begin_copy(target)
        # Files first: the database becomes usable when everything that it names is there.
        copied = await copy_files(*files) if files else 0
        rows = await copy_rows(source, target)
        await finish_copy(target)
        return f"copied {counted(rows, 'row')} and {counted(copied, 'file')}"


@click.command("hash-password")
@flags.every_command
def hash_password(**_options: Any) -> None:
    """Print the hash of a password for spec.projects of the configuration.

    The password is read from standard input, or asked for on a terminal.
    """
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UserMistake("the password is empty", hint="write it to standard input")
    click.echo(hash_key(password))


def _run(options: dict[str, Any], operation: str, arguments: Arguments) -> Rows:
    configure(options["log_level"], options["log_encoding"], program="controlplane.operator")
    file = options["config_file"]
    spec = read_control_plane(read_file(file, "configuration"), file=file)
    return asyncio.run(run_operation(spec, options["cache_address"], operation, arguments))


async def run_operation(
    spec: ControlPlaneSpec, cache_address: str, operation: str, arguments: Arguments
) -> Rows:
    """Runs an operation of the operator on the stores, or on the server that has them open."""
    if spec.datastore.type == "SQLITE":
        path = socket_path(Path(spec.datastore.config.path))
        rows = await run_on_server(path, operation, arguments)
        if rows is not None:
            return rows
    async with open_stores(spec, cache_address, Telemetry()) as opened:
        cases = build_use_cases(
            opened.stores,
            opened.bus,
            address=spec.address,
            encryption_key=b"",
            projects_from_config=projects_from_config(spec),
        )
        installation = create_installation(cases.projects, cases.api_keys, spec)
        async with _relaying(opened.bus):
            return await installation.run(operation, arguments)


@asynccontextmanager
async def _relaying(bus: Bus) -> AsyncGenerator[None]:
    """Signals what the block changes to the servers, which drop what they have cached of it."""
    running = asyncio.create_task(bus.run())
    try:
        if isinstance(bus, RelayBus):
            # Every subscriber receives a signal when the bus has connected.
            async with bus.subscribe() as signals:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        await anext(signals)
        yield
    finally:
        # Signals that are pending are sent at the end of the bus.
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def _print(rows: Rows, output: str) -> None:
    match output:
        case "json":
            click.echo(json.dumps(rows))
        case "yaml":
            click.echo(yaml.safe_dump(rows, sort_keys=False, allow_unicode=True), nl=False)
        case "name":
            for row in rows:
                click.echo(next(iter(row.values())))
        case _:
            _print_table(rows)


def _print_table(rows: Rows) -> None:
    if not rows:
        return
    titles = [name.upper().replace("_", " ") for name in rows[0]]
    table = [titles, *([value or "-" for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
