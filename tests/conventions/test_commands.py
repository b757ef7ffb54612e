# SPDX-License-Identifier: Apache-2.0
"""The guide to commands and the commands themselves are the same list."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from pipecd import cli
from pipecd.commandline.flags import every_command
from pipecd.commandline.main import run
from pipecd.model.deployment import DeploymentStatus
from pipecd.pipectl import cli as pipectl

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "commands.md").read_text()
ROW = re.compile(r"^\| `(--[\w-]+)` \| (.+?) \| (.+?) \|$", re.M)
SHARED, CLIENT = "Flags of every command", "Flags of `pipectl`"
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Flag:
    """The documentation of a flag."""

    default: str
    meaning: str


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", GUIDE, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


SECTIONS = sections()


def flags_in(text: str) -> dict[str, Flag]:
    return {flag: Flag(default, meaning) for flag, default, meaning in ROW.findall(text)}


def documented() -> dict[str, dict[str, Flag]]:
    """The flags of every command that has a section, by the words that one types."""
    return {
        command: flags_in(text)
        for title, text in SECTIONS.items()
        if title not in (SHARED, CLIENT)
        for command in re.findall(r"`([^`]+)`", title)
    }


def trees() -> list[click.Group]:
    """The command trees as the programs make them, `version` included."""
    made: list[click.Group] = []

    def catch(tree: click.Group) -> int:
        made.append(tree)
        return run(tree, ["--help"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "run", catch)
        patch.setattr(pipectl, "run", catch)
        for program, main in (
            ("pipecd", cli.main),
            ("piped", cli.piped_main),
            ("launcher", cli.launcher_main),
            ("pipectl", pipectl.main),
        ):
            patch.setattr(sys, "argv", [program])
            with pytest.raises(SystemExit):
                main()
    return made


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None, f"{path} {name} is listed and cannot be found"
        yield from leaves(below, f"{path} {name}")


COMMANDS = {path: c for tree in trees() for path, c in leaves(tree, tree.name or "")}


def options_of(command: click.Command) -> dict[str, click.Option]:
    given = (p for p in command.params if isinstance(p, click.Option))
    return {name: option for option in given for name in option.opts if name.startswith("--")}


def default_of(option: click.Option) -> str:
    """The default as the guide writes it."""
    if option.required:
        return "required"
    default = option.to_info_dict()["default"]
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int):
        return f"`{default}`"
    if isinstance(default, str) and default:
        return f"`{default.replace(str(Path.home()), '~')}`"
    return NOTHING


def test_every_command_is_documented_and_every_documented_one_exists() -> None:
    assert documented().keys() == COMMANDS.keys()


@pytest.mark.parametrize("path", COMMANDS)
def test_the_flags_are_those_of_the_guide(path: str) -> None:
    options = options_of(COMMANDS[path])
    documented_flags = documented()[path]
    shared = flags_in(SECTIONS[SHARED])
    if path.startswith("pipectl "):
        shared |= flags_in(SECTIONS[CLIENT])
    assert documented_flags.keys() - options.keys() == set(), "these flags have vanished"
    known = {**{name: shared[name] for name in shared.keys() & options.keys()}, **documented_flags}
    assert {name: default_of(option) for name, option in options.items()} == {
        name: flag.default for name, flag in known.items()
    }


@pytest.mark.parametrize("path", COMMANDS)
def test_a_flag_without_effect_is_documented_as_such(path: str) -> None:
    documented_flags = {
        **flags_in(SECTIONS[SHARED]),
        **flags_in(SECTIONS[CLIENT]),
        **documented()[path],
    }
    idle = re.compile("accepted|not available|no effect|not served", re.I)
    assert [
        name
        for name, option in options_of(COMMANDS[path]).items()
        if idle.search(option.help or "") and not re.search("no effect|not available", documented_flags[name].meaning)
    ] == []  # fmt: skip


def test_the_shared_flags_are_those_of_every_command_that_has_flags() -> None:
    @click.command()
    @every_command
    def nothing(**_: object) -> None: ...

    assert flags_in(SECTIONS[SHARED]).keys() == options_of(nothing).keys()
    without = {path for path, c in COMMANDS.items() if not flags_in(SECTIONS[SHARED]).keys() <= options_of(c).keys()}  # fmt: skip
    assert {path.split()[-1] for path in without} == {"version", "help", "completion"}


def test_the_statuses_are_those_that_pipectl_takes() -> None:
    statuses = re.findall(r"`(DEPLOYMENT_[A-Z_]+)`", GUIDE)
    assert statuses == [f"DEPLOYMENT_{status.name}" for status in DeploymentStatus]


def test_controlplane_is_another_name_of_pipecd(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[click.Group] = []
    monkeypatch.setattr(cli, "run", lambda tree: made.append(tree) or 0)
    for program in ("pipecd", "controlplane"):
        monkeypatch.setattr(sys, "argv", [f"/usr/bin/{program}"])
        with pytest.raises(SystemExit):
            cli.main()
    first, second = ([*tree.list_commands(click.Context(tree))] for tree in made)
    assert first == second
    assert [tree.name for tree in made] == ["pipecd", "controlplane"]
