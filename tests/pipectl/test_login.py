# SPDX-License-Identifier: Apache-2.0
"""`pipectl login` and the contexts that further commands use."""

import asyncio
import io
import json
from pathlib import Path

import pytest
import yaml

from pipecd.commandline.main import run
from pipecd.pipectl.cli import tree
from pipecd.pipectl.contexts import Context, Contexts, load_contexts, save_contexts
from pipecd.pipectl.login import new_context
from servers.control_plane import StartControlPlane


async def test_a_login_is_used_by_further_commands(
    start_plane: StartControlPlane, contexts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start_plane() as plane:

        async def typed(line: str, input_key: str = "") -> tuple[int, str, str]:
            words = [*line.split(), *(["--api-key", input_key] if input_key else [])]
            code = await asyncio.to_thread(run, tree(), words)
            shown = capsys.readouterr()
            return code, shown.out, shown.err

        login = f"login --address {plane.address} --insecure --context work"
        code, _, err = await typed(login, "wrong")
        assert code == 1
        assert "the API key is wrong, disabled or of another control plane" in err
        assert await asyncio.to_thread(contexts.exists) is False
        code, out, _ = await typed(login, plane.api_key)
        assert code == 0
        assert "further commands use the context work" in out
        assert (await asyncio.to_thread(contexts.stat)).st_mode & 0o777 == 0o600
        assert (await typed("application list"))[:2] == (0, "{}\n")
        await typed(f"login --address {plane.address} --insecure", plane.api_key)
        assert f"*  {plane.address}" in (await typed("context list --output table"))[1]
        sentence = f"Further commands use the context {plane.address}.\n"
        assert (await typed(f"context use {plane.address}"))[:2] == (0, sentence)
        sentence = f"Further commands use the context work of {plane.address}.\n"
        assert (await typed("context use work"))[:2] == (0, sentence)
        assert "*  work" in (await typed("context list --output table"))[1]
        code, out, _ = await typed("context delete work")
        assert (code, "Deleted the context work" in out, "context use" in out) == (0, True, True)
        code, _, err = await typed("application list")
        assert "address must be set; add --address host:port, or run `pipectl login` first" in err
        code, _, err = await typed("application list --context work")
        assert f"there is no context work; use one of: {plane.address}" in err
        await asyncio.to_thread(contexts.write_text, "{")
        assert "is damaged" in (await typed("context list"))[2]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        pytest.param(["--insecure"], "--address is not set; write host:port, such as cd:443", id="no address"),
        pytest.param(["--address", "cd:443"], "there is no API key; type it, or set --api-key-file", id="no key"),
    ],
)  # fmt: skip
def test_a_login_says_what_it_lacks(
    flags: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(tree(), ["login", *flags]) == 1
    assert capsys.readouterr().err.strip().endswith(problem)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        pytest.param("cd.example.com", "cd.example.com", id="an address without a port"),
        pytest.param("cd.example.com:443", "cd.example.com:443", id="an address with a port"),
        pytest.param("cd.example.com:8443", "cd.example.com:8443", id="another port of the host"),
        pytest.param("[::1]:443", "[::1]:443", id="an IPv6 address"),
    ],
)
def test_a_context_is_named_after_its_whole_address(address: str, name: str) -> None:
    given = {"address": address, "context": "", "insecure": False, "cert_file": ""}
    assert new_context(given, "key") == (name, Context(address, "key"))


def test_a_relative_certificate_is_found_from_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"address": "cd:443", "context": "work", "insecure": False, "cert_file": "ca.pem"}
    name, context = new_context(given, "key")
    assert (name, context.cert_file) == ("work", str(tmp_path / "ca.pem"))


def test_contexts_are_listed_in_four_forms(capsys: pytest.CaptureFixture[str]) -> None:
    save_contexts(
        Contexts({"work": Context("cd:443", "secret-1"), "lab": Context("lab", "secret-2")}, "lab")
    )

    def listed(form: str) -> str:
        assert run(tree(), ["context", "list", *form.split()]) == 0
        return capsys.readouterr().out

    document = {
        "current": "lab",
        "contexts": [
            {"name": "work", "address": "cd:443", "insecure": False, "cert_file": ""},
            {"name": "lab", "address": "lab", "insecure": False, "cert_file": ""},
        ],
    }
    assert json.loads(listed("")) == document
    assert yaml.safe_load(listed("--output yaml")) == document
    assert listed("--output name") == "work\nlab\n"
    table = listed("--output table")
    assert table.splitlines()[2].split() == ["*", "lab", "lab"]
    assert "secret" not in table + listed("")


def test_a_context_may_be_deleted_while_it_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    save_contexts(Contexts({"work": Context("cd:443", "k")}, "work"))
    assert run(tree(), ["context", "delete", "work"]) == 0
    assert load_contexts() == Contexts()
    assert capsys.readouterr().err == ""
