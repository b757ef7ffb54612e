# SPDX-License-Identifier: Apache-2.0
"""Every command of upstream's pipectl and ours, typed to both on one control plane of each kind."""

import re
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import click
import pytest

from pipecd.model.ids import new_id
from pipecd.pipectl import cli
from pipecd.proto.model.application_pb2 import Application
from servers.installation import Completed
from servers.origin import Origin
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPECTL, OUR_PIPED
from servers.registry import OciRegistry
from servers.samples import WAITING_CART
from servers.side_by_side import (
    LINES,
    OurSceneServer,
    Scene,
    SceneServer,
    UpstreamSceneServer,
    printed,
)
from servers.upstream import UpstreamInstallation, UpstreamPlane

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Ours prints the reference of what was pushed, with its digest.
PRINTED_BY_OURS = {"plugin push"}
# What these log about their progress is in words of our own.
PROGRESS = ("migrate", "plugin", "transfer")
# Commands of every program that uses cobra.
NOT_SHARED = {"completion", "help", "version"}

# Commands of ours that call RPCs which no control plane of upstream has.
REFUSED = {
    "deployment approve": "--deployment-id {deployment} --stage-id s1",
    "deployment cancel": "--deployment-id {deployment}",
    "deployment reject": "--deployment-id {deployment} --stage-id s1 --reason no",
    "deployment skip": "--deployment-id {deployment} --stage-id s1",
    "piped list": "",
    "session end": "--all",
    "session list": "",
}
# Commands of ours that make do with upstream's RPCs, and what they print.
SERVED = {
    "application diff": ("--app-id {application}", "is UNKNOWN"),
    "application edit": ("--app-id {application} --config-file-name web.pipecd.yaml", "updated application id = {application}"),
    "application enable": ("--app-id {application}", "enabled application id = {application}"),
    "deployment get": ("--deployment-id {deployment}", '"id":"{deployment}"'),
    "login": ("", "further commands use the context"),
    "piped get": ("--piped-id {piped}", '"id":"{piped}"'),
    "piped register": ("--name second", '"key":'),
}  # fmt: skip
# Commands of ours that wait for a piped; a test with a piped has them.
WAITING = {"deployment retry", "deployment watch"}
# Commands of ours that connect to no control plane, or only if they are told to.
OFFLINE = {
    "context delete", "context list", "context use", "init", "lint", "plugin check",
    "plugin init", "schema",
}  # fmt: skip


def help_of(program: Path, *words: str) -> str:
    ran = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True)
    return ran.stdout


def commands_of(program: Path, *words: str) -> Iterator[tuple[str, ...]]:
    """The commands without subcommands of a program that uses cobra."""
    section = re.search(r"Available Commands:\n((?:  .+\n)+)", help_of(program, *words))
    names = [line.split()[0] for line in section[1].splitlines()] if section else []
    if not names:
        yield words
    for name in names:
        if name not in NOT_SHARED:
            yield from commands_of(program, *words, name)


def commands_of_ours(command: click.Command, *words: str) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(words)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from commands_of_ours(below, *words, name)


def flags_of(program: Path, words: tuple[str, ...]) -> dict[str, str]:
    """The flags of a command and their defaults."""
    lines = re.findall(r"^ +(?:-\w, )?--([\w-]+)(.*)$", help_of(program, *words), re.MULTILINE)
    found: dict[str, str] = {}
    for name, rest in lines:
        default = re.search(r'\(default "?([^")]*)"?\)$', rest.strip())
        found[name] = default[1] if default else ""
    return found


def test_all_commands_of_upstream_are_compared(upstream_pipectl: Path) -> None:
    assert {" ".join(words) for words in commands_of(upstream_pipectl)} == set(LINES)


def test_all_commands_of_ours_are_tried_on_a_control_plane_of_upstream() -> None:
    ours = {*commands_of_ours(cli.tree())} - NOT_SHARED
    assert ours == {*LINES, *REFUSED, *SERVED, *WAITING, *OFFLINE}


@pytest.mark.parametrize("command", LINES)
def test_ours_has_all_flags_of_upstream(command: str, upstream_pipectl: Path) -> None:
    words = tuple(command.split())
    ours = subprocess.run(
        [OUR_PIPECTL, *words, "--help"], capture_output=True, text=True, check=True
    ).stdout
    for flag in flags_of(upstream_pipectl, words):
        assert f"--{flag}" in ours


@pytest.mark.parametrize("command", LINES)
async def test_both_do_the_same(
    command: str,
    open_installation: OpenInstallation,
    upstream_pipectl: Path,
    registry: OciRegistry,
    tmp_path: Path,
) -> None:
    async with open_installation() as installation:
        server = OurSceneServer(installation)
        await compare(server, command, upstream_pipectl, registry, tmp_path)


async def compare(
    server: SceneServer, command: str, upstream: Path, registry: OciRegistry, directory: Path
) -> None:
    theirs, ours = [
        await printed(Scene(server, directory / name), program, command, registry)
        for name, program in (("theirs", upstream), ("ours", OUR_PIPECTL))
    ]
    assert ours.code == theirs.code
    assert ours.files == theirs.files
    if command not in PRINTED_BY_OURS:
        assert ours.out == theirs.out
    if not command.startswith(PROGRESS):
        assert ours.err == theirs.err


@pytest.fixture(scope="module")
def upstream_plane(upstream: Path, request: pytest.FixtureRequest) -> Iterator[UpstreamPlane]:
    """One control plane of upstream for all commands; each works on objects of its own."""
    program = upstream / "pipecd"
    if not program.exists():
        pytest.skip(f"PIPECD_UPSTREAM names {upstream}, where there is no pipecd")
    dolt, redis, s3 = (request.getfixturevalue(name) for name in ("dolt", "redis", "s3"))
    plane = UpstreamPlane(program, (dolt, redis, s3), f"upstream-{new_id()}")
    yield plane
    plane.close()


@pytest.fixture
async def upstream_server(
    upstream_plane: UpstreamPlane, origin: Origin, tmp_path: Path
) -> AsyncGenerator[UpstreamSceneServer, None]:
    installation = UpstreamInstallation(upstream_plane, origin, tmp_path)
    await installation.admin.sign_in()
    yield UpstreamSceneServer(installation)


@pytest.mark.parametrize("command", LINES)
async def test_both_do_the_same_on_a_control_plane_of_upstream(
    command: str,
    upstream_server: UpstreamSceneServer,
    upstream_pipectl: Path,
    registry: OciRegistry,
    tmp_path: Path,
) -> None:
    await compare(upstream_server, command, upstream_pipectl, registry, tmp_path)


@pytest.mark.parametrize("command", REFUSED)
async def test_a_command_that_upstream_cannot_answer_says_so(
    command: str, upstream_server: UpstreamSceneServer, registry: OciRegistry, tmp_path: Path
) -> None:
    scene = Scene(upstream_server, tmp_path / "ours")
    await scene.prepare(registry)
    done = await scene.type(OUR_PIPECTL, command, REFUSED)
    assert (done.code, done.out) == (1, "")
    address = upstream_server.installation.api_address
    said = f"the control plane at {address} does not offer this to pipectl; it is one of upstream's"
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", SERVED)
async def test_a_command_of_ours_works_on_a_control_plane_of_upstream(
    command: str,
    upstream_server: UpstreamSceneServer,
    registry: OciRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    scene = Scene(upstream_server, tmp_path / "ours")
    await scene.prepare(registry)
    line, says = SERVED[command]
    done = await scene.type(OUR_PIPECTL, command, {command: line})
    assert done.code == 0, done.err
    assert says.format(**scene.values) in done.out + done.err


async def test_both_wait_for_a_deployment_on_a_control_plane_of_upstream(
    upstream_server: UpstreamSceneServer,
    upstream_pipectl: Path,
    free_port: Callable[[], int],
) -> None:
    installation, flags = upstream_server.installation, await upstream_server.flags()

    async def typed(program: Path, line: str) -> Completed:
        return await installation.run(program, *line.split(), *flags)

    first = installation.origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    agent = await installation.register_piped("ours", "  plugins: [{name: wait}]\n")
    started = ("run", f"--config-file={agent.config}", "--insecure", f"--admin-port={free_port()}")
    async with installation.running(OUR_PIPED, *started) as piped:
        await installation.eventually(lambda: installation.introduced(agent.id), piped)
        id = await installation.add_application("cart", Application(name="cart", piped_id=agent.id))
        deployed = await installation.eventually(lambda: installation.ended(first), piped)
        sync = f"application sync --app-id {id} --check-interval 1s --timeout 60s"
        wait = "--wait-status DEPLOYMENT_SUCCESS,DEPLOYMENT_FAILURE"
        theirs, ours = [
            await typed(program, f"{sync} {wait}") for program in (upstream_pipectl, OUR_PIPECTL)
        ]
        retried = await typed(OUR_PIPECTL, f"deployment retry --deployment-id {deployed.id}")
    assert (ours.code, theirs.code) == (0, 0), ours.err + theirs.err
    assert distinct_lines(ours.err) == distinct_lines(theirs.err)
    assert retried.code == 0, retried.err
    one = f"--deployment-id {deployed.id}"
    for line in (
        f"deployment list --app-id {id} --status DEPLOYMENT_SUCCESS",
        f"deployment logs {one}",
        f"deployment wait-status {one} --status DEPLOYMENT_SUCCESS",
    ):
        theirs, ours = [await typed(program, line) for program in (upstream_pipectl, OUR_PIPECTL)]
        assert (ours.code, ours.out) == (theirs.code, theirs.out) == (0, theirs.out), ours.err
    watched = await typed(OUR_PIPECTL, f"deployment watch {one}")
    assert (watched.code, "SUCCESS" in watched.out) == (0, True), watched.err
    followed = await typed(OUR_PIPECTL, f"deployment logs --follow {one}")
    assert (followed.code, "WAIT  " in followed.out) == (0, True), followed.err


def distinct_lines(log: str) -> list[str]:
    """The lines without ids and times, each once: the programs poll at intervals of their own."""
    anonymous = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", log)
    lines = (line for line in anonymous.splitlines() if line != "...")
    return list(dict.fromkeys(lines))
