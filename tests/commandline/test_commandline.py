# SPDX-License-Identifier: Apache-2.0
"""Every spelling that the Go tools accept is accepted here."""

import re
import sys

import click
import pytest

from pipecd.commandline import flags
from pipecd.commandline.lazy_group import LazyGroup
from pipecd.commandline.main import fail, run
from pipecd.model.errors import Unavailable, UserMistake

seen: dict[str, object] = {}


@click.group("tool", context_settings={"help_option_names": ["-h", "--help"]})
def tool() -> None: ...


@tool.group("thing")
def thing() -> None: ...


@thing.command("make")
@flags.every_command
@flags.text("name", "A name.", required=True)
@flags.switch("insecure", "Plain text.")
@flags.text("thing-id", "The thing.")
@flags.port("port", "Where to listen; -1 for nowhere.", default=0, lowest=-1)
@flags.duration("wait", "How long.", default="15s")
@flags.strings("label", "Labels.")
@flags.pairs("data", "Pairs.")
def make(**given: object) -> None:
    seen.clear()
    seen.update(given)


@thing.command("break")
@flags.text("how", "Which way.", default="mistake")
def broken(how: str) -> None:
    mistake = UserMistake("the name is taken", hint="choose another")
    if how == "group":
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [mistake])])
    if how == "mixed":
        raise ExceptionGroup("tasks", [mistake, ValueError("a bug")])
    raise mistake


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("thing make --name a", {"name": "a"}, id="a value after a space"),
        pytest.param("thing make --name=a", {"name": "a"}, id="a value after an equals sign"),
        pytest.param("thing make --insecure --name a", {"insecure": True}, id="a switch alone"),
        pytest.param("thing make --insecure=false --name a", {"insecure": False}, id="a switch off"),
        pytest.param("thing make --metrics=true --name a", {"metrics": True}, id="a switch spelled out"),
        pytest.param("--log-level debug thing make --name a", {"log_level": "debug"}, id="a global flag first"),
        pytest.param("thing --log-level=debug make --name a", {"log_level": "debug"}, id="a global flag between"),
        pytest.param("thing --name a make", {"name": "a"}, id="a command's own flag before its name"),
        pytest.param("thing --insecure make --name a", {"insecure": True, "name": "a"}, id="a command's own switch before its name"),
        pytest.param("--insecure --name a thing make", {"insecure": True, "name": "a"}, id="flags of a command before its group"),
        pytest.param("--insecure thing --name a make", {"insecure": True, "name": "a"}, id="flags before every word"),
        pytest.param("thing make --name a --wait 1h30m", {"wait": 5400.0}, id="a Go duration"),
        pytest.param("thing make --name a --wait 1.5m", {"wait": 90.0}, id="a fraction in a duration"),
        pytest.param("thing make --name a --label x,y --label z", {"label": ("x", "y", "z")}, id="lists by comma and repetition"),
        pytest.param("thing make --name a --data k=v,k2=v2 --data k3=a=b", {"data": {"k": "v", "k2": "v2", "k3": "a=b"}}, id="maps by comma and repetition"),
        pytest.param('thing make --name a --data k=v,"to=x,y",q=say"z"', {"data": {"k": "v", "to": "x,y", "q": 'say"z"'}}, id="a comma in a value"),
    ],
)  # fmt: skip
def test_a_flag_is_read(line: str, expected: dict[str, object]) -> None:
    assert run(tool, line.split()) == 0
    assert {name: seen[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("thing make", 'required flag(s) "name" not set', id="a required flag is missing"),
        pytest.param("thing make --thing-id --name a", 'required flag(s) "name" not set', id="a required flag as the value of another"),
        pytest.param("thing make --name a --wait 10", "missing unit in duration", id="a duration without a unit"),
        pytest.param("thing make --nam a", "No such option", id="an unknown flag"),
        pytest.param("thing make --id a", "No such option '--id'. Did you mean '--thing-id'?", id="the end of a flag"),
        pytest.param("thing make --name a --port 99999", "there is no port 99999; ports end at 65535", id="a port that is too high"),
        pytest.param("thing make --name a --port=-2", "there is no port -2", id="a negative port"),
        pytest.param("thing make --name a --port http", "'http' is not a port", id="a word as a port"),
        pytest.param("thing unmake", "No such command", id="an unknown command"),
        pytest.param("--insecure --name a thng make", "No such command 'thng'", id="an unknown command after flags"),
        pytest.param("thing --name a unmake", "No such command 'unmake'", id="an unknown command between flags"),
        pytest.param("thing make --name a --data k", "key=value", id="a map without an equals sign"),
        pytest.param("thing break", "the name is taken; choose another", id="a mistake with a hint"),
        pytest.param("thing break --how group", "the name is taken; choose another", id="a mistake inside groups"),
    ],
)  # fmt: skip
def test_a_user_mistake_prints_one_sentence_and_exits_with_1(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tool, line.split()) == 1
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed


def test_help_lists_the_flags_of_a_command_before_those_of_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tool, ["thing", "make", "--help"]) == 0
    listed = re.findall(r"^ +(--[a-z-]+)", capsys.readouterr().out, re.M)
    assert listed[:3] == ["--name", "--insecure", "--thing-id"]
    assert listed.index("--data") < listed.index("--log-level") < listed.index("--profile")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("", "Commands:", id="nothing prints the help"),
        pytest.param("thing", "Commands:", id="a group prints its help"),
        pytest.param("-h", "Commands:", id="a short flag at the top"),
        pytest.param("thing make -h", "--name", id="a short flag below"),
        pytest.param("thing make --help", "--name", id="a long flag below"),
        pytest.param("help thing make", "--name", id="the help of a command"),
        pytest.param("version", "Version: v", id="the version"),
        pytest.param("--version", "Version: v", id="the version by a flag"),
        pytest.param("completion bash", "_TREE_COMPLETE", id="a completion script"),
    ],
)
def test_help_and_the_commands_of_every_program(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    branches = {"thing": (f"{__name__}:thing", "Things.")}
    assert run(LazyGroup("tree", branches, "A tree."), line.split()) == 0
    shown = capsys.readouterr()
    assert words in shown.out
    assert shown.err == ""


def test_every_missing_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command("two")
    @flags.text("one", "One.", required=True)
    @flags.text("other", "Other.", required=True)
    def two(**_: object) -> None: ...

    assert run(two, []) == 1
    assert 'required flag(s) "one", "other" not set' in capsys.readouterr().err


def test_an_error_cannot_change_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a terminal, click prints escape sequences.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert fail("failed: \x1b]0;title\x07\x9b2J\none more line\t.") == 1
    assert capsys.readouterr().err == "failed: ]0;title2J\none more line\t.\n"


@pytest.mark.parametrize(
    ("is_terminal", "printed"),
    [
        pytest.param(True, r"failed to list: the key is wrong\n", id="words on a terminal"),
        pytest.param(False, r"\d{4}/\d\d/\d\d [\d:]{8} failed to list: rpc error: code = Unauthenticated desc = the key is wrong\n", id="upstream's line in a pipe"),
    ],
)  # fmt: skip
def test_an_error_is_printed_for_its_reader(
    is_terminal: bool,
    printed: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    fail("failed to list: rpc error: code = Unauthenticated desc = the key is wrong")
    assert re.fullmatch(printed, capsys.readouterr().err)


def test_a_bug_beside_a_mistake_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup):
        run(tool, ["thing", "break", "--how", "mixed"])


def test_an_error_is_printed_with_its_hint() -> None:
    assert str(Unavailable("the server is away", hint="start it")) == "the server is away; start it"
