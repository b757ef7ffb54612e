# SPDX-License-Identifier: Apache-2.0
"""Every command line in a page of the documentation is one that the programs accept."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from pipecd import cli
from pipecd.pipectl import cli as pipectl

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)(`{3,})(\w*)[^\n]*\n(.*?)^\1\2$", re.M | re.S)
# Blocks in these languages, or in none, have lines that are typed in a shell.
SHELL = ("", "console", "sh", "text")
# Where a command begins, apart from the beginning of its line: after an operator, or after the
# options of a program that runs another one.
SEPARATOR = re.compile(r"\|\||&&|[;|(]|(?<!\S)--(?!\S)")
REDIRECTION = re.compile(r"\s+[12]?>>?\s*\S+|\s+&$|\)$")
# Commands that every program has, besides those of its tree.
COMMON = {"completion", "help", "version"}
TREES: Mapping[str, click.Group] = {
    "pipecd": cli.tree(),
    "piped": cli.piped_tree(),
    "launcher": cli.launcher_tree(),
    "pipectl": pipectl.tree(),
}


@dataclass(frozen=True)
class CommandLine:
    """The words of a command of ours; `is_whole` if somebody is supposed to type it like this."""

    place: str
    words: tuple[str, ...]
    is_whole: bool


def pages() -> list[Path]:
    inside = [p for p in (ROOT / "docs").rglob("*.md") if "changes" not in p.parts]
    return sorted([*inside, *(ROOT / "examples").rglob("*.md"), *ROOT.glob("*.md")])


def command_lines(page: Path) -> Iterator[CommandLine]:
    text, name = page.read_text(), str(page.relative_to(ROOT))
    for block in FENCE.finditer(text):
        if block[3] in SHELL:
            for line in re.sub(r"\\\n\s*", " ", block[4]).splitlines():
                for part in SEPARATOR.split(re.sub(r"^\s*[$#] ", "", line)):
                    yield from _ours(name, _words(REDIRECTION.sub("", part)), is_whole=True)
    for span in re.findall(r"`([^`]+)`", FENCE.sub("", text)):
        yield from _ours(name, span.split(), is_whole=False)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        # A part of a line may have one of two quotation marks.
        return line.split()


def _ours(place: str, words: Sequence[str], *, is_whole: bool) -> Iterator[CommandLine]:
    begin = next((i for i, word in enumerate(words) if not re.match(r"\w+=", word)), 0)
    if len(words) > begin + 1 and words[begin].rpartition("/")[2] in TREES:
        yield CommandLine(place, tuple(words[begin:]), is_whole)


LINES = list(dict.fromkeys(line for page in pages() for line in command_lines(page)))


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The flags of a command; those of a group are those of its commands, as upstream has it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = (command.get_command(context, name) for name in command.list_commands(context))
        return {name: o for one in below if one for name, o in options_of(one).items()}
    options = (p for p in command.params if isinstance(p, click.Option))
    return {name: option for option in options for name in option.opts}


class Refused(Exception):
    """Why a program would refuse a command line."""


def check(line: CommandLine) -> None:
    """Raises Refused if the program would refuse the line, or would not get all that it needs."""
    command: click.Command = TREES[line.words[0].rpartition("/")[2]]
    is_whole, flags, rest = line.is_whole, set[str](), list(line.words[1:])
    while rest:
        word = rest.pop(0)
        if word in {"--", "--help", "--version"} or (
            isinstance(command, click.Group) and word in COMMON
        ):
            return
        if word.startswith("--"):
            name, equals, _ = word.partition("=")
            if name not in (options := options_of(command)):
                raise Refused(f"no flag {name}")
            flags.add(name)
            if not equals and not options[name].is_flag:
                rest = rest[1:]
        elif "…" in word or word.isupper():
            is_whole = False
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                raise Refused(f"no command {word}")
            command = found
    if is_whole:
        _check_whole(command, flags)


def _check_whole(command: click.Command, flags: set[str]) -> None:
    if isinstance(command, click.Group) and len(command.list_commands(click.Context(command))) > 1:
        raise Refused("a command is missing")
    required = {name for name, option in options_of(command).items() if option.required}
    if missing := required - flags:
        raise Refused(f"{', '.join(sorted(missing))} missing")


def test_pages_have_command_lines() -> None:
    assert len([line for line in LINES if line.is_whole]) > 30


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        pytest.param("pipectl deployment cancle --deployment-id x", "no command cancle", id="an unknown command"),
        pytest.param("pipectl deployment get --id x", "no flag --id", id="an unknown flag"),
        pytest.param("pipectl deployment get", "--deployment-id missing", id="without a required flag"),
        pytest.param("pipectl deployment", "a command is missing", id="only a group"),
    ],
)  # fmt: skip
def test_a_line_that_a_program_refuses_is_found(words: str, problem: str) -> None:
    with pytest.raises(Refused, match=f"^{problem}$"):
        check(CommandLine("a page", tuple(words.split()), is_whole=True))


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=f"{line.place}: {' '.join(line.words)}") for line in LINES]
)
def test_a_command_line_of_a_page_is_accepted(line: CommandLine) -> None:
    check(line)
