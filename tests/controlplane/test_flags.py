# SPDX-License-Identifier: Apache-2.0
"""`pipecd server` and `pipecd ops` accept every flag of upstream, in the same forms."""

import sys
from collections.abc import Callable

import pytest

from pipecd import cli

COMMON = {
    "log-level": "debug",
    "log-encoding": "json",
    "metrics": "false",
    "profile": "true",
    "profile-debug-logging": "true",
    "profiler-credentials-file": "x",
}
SERVER = COMMON | {
    "piped-api-port": "1",
    "web-api-port": "1",
    "http-port": "1",
    "api-port": "1",
    "admin-port": "1",
    "envoy-authz-port": "1",
    "static-dir": "web/static",
    "cache-address": "cache:6379",
    "grace-period": "1m30s",
    "tls": "false",
    "cert-file": "x",
    "key-file": "x",
    "insecure-cookie": "true",
    "encryption-key-file": "/nowhere",
    "enable-grpc-reflection": "true",
}
OPS = COMMON | {
    "http-port": "1",
    "admin-port": "1",
    "grace-period": "15s",
    "gcloud-path": "gcloud",
    "cache-address": "cache:6379",
}
SWITCHES = {"metrics", "profile", "profile-debug-logging", "tls", "insecure-cookie"} | {
    "enable-grpc-reflection"
}


def exit_code(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs a command line; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["pipecd", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(str(ended.value.code))


def with_equals(flags: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def with_spaces(flags: dict[str, str]) -> list[str]:
    """A switch stands alone; `--name value` would be a switch and a stray word."""
    return [
        word
        for name, value in flags.items()
        for word in ([f"--{name}"] if name in SWITCHES else [f"--{name}", value])
    ]


def with_go_booleans(flags: dict[str, str]) -> list[str]:
    return [f"--{name}={'T' if name in SWITCHES else value}" for name, value in flags.items()]


@pytest.mark.parametrize(
    ("command", "flags"),
    [pytest.param("server", SERVER, id="server"), pytest.param("ops", OPS, id="ops")],
)
@pytest.mark.parametrize(
    "spelled",
    [
        pytest.param(with_equals, id="with an equals sign"),
        pytest.param(with_spaces, id="with a space"),
        pytest.param(with_go_booleans, id="with the short booleans of Go"),
    ],
)
def test_every_flag_of_upstream_is_accepted(
    *,
    command: str,
    flags: dict[str, str],
    spelled: Callable[[dict[str, str]], list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [command, *spelled(flags), "--config-file", "/nowhere/cp.yaml"]
    assert exit_code(words, monkeypatch) == 1
    # It reads the configuration only after all flags were parsed.
    assert "cannot read the configuration /nowhere/cp.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["server"], 'required flag(s) "config-file", "encryption-key-file" not set', id="required flags"),
        pytest.param(["server", "--metrics=maybe"], "maybe", id="an invalid boolean"),
        pytest.param(["server", "--log-encoding=xml", "--config-file=x", "--encryption-key-file=x"], 'no encoder registered for name "xml"', id="an unknown encoding"),
        pytest.param(["ops", "--log-level=loud", "--config-file=x"], 'unrecognized level: "loud"', id="an unknown level"),
    ],
)  # fmt: skip
def test_an_invalid_command_line_is_rejected(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert exit_code(words, monkeypatch) == 1
    assert message in capsys.readouterr().err
