# SPDX-License-Identifier: Apache-2.0
"""The operator of a deploy target decides on users and ports, an application chooses from them."""

from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.plugins.process.config import ProcessInput, ProcessTarget
from pipecd.plugins.process.wanted import check_allowed
from pipecd.sdk import StageStatus, UserMistake
from plugins.process.testbed import Service


def check(input: dict[str, Any], target: dict[str, Any], own: str = "piped") -> None:
    check_allowed(
        decode_plain({"command": "serve", **input}, ProcessInput, what="input"),
        decode_plain(target, ProcessTarget, what="target"),
        own_user=own,
    )


@pytest.mark.parametrize(
    ("user", "allowed", "own"),
    [
        pytest.param("", [], "piped", id="that of piped"),
        pytest.param("piped", [], "piped", id="that of piped by its name"),
        pytest.param("", ["www"], "piped", id="that of piped beside listed ones"),
        pytest.param("www", ["db", "www"], "root", id="a listed one"),
        pytest.param("", [], "root", id="root if piped is root and nothing is listed"),
        pytest.param("", ["www", "root"], "root", id="root if it is listed"),
    ],
)
def test_a_program_runs_as(user: str, allowed: list[str], own: str) -> None:
    check({"limits": {"user": user}}, {"users": allowed}, own)


@pytest.mark.parametrize(
    ("user", "allowed", "own", "refused"),
    [
        pytest.param("www", [], "root", "www", id="any user of a piped that is root"),
        pytest.param("root", [], "piped", "root", id="root"),
        pytest.param("db", ["www"], "root", "db", id="a user that is not listed"),
        pytest.param("", ["www"], "root", "root", id="root beside listed users"),
        pytest.param("root", ["www"], "root", "root", id="root by its name beside listed users"),
    ],
)
def test_a_program_does_not_run_as(user: str, allowed: list[str], own: str, refused: str) -> None:
    with pytest.raises(UserMistake, match=f"may not run programs as {refused!r}") as refusal:
        check({"limits": {"user": user}}, {"users": allowed}, own)
    assert "`users` of the deploy target" in refusal.value.hint


@pytest.mark.parametrize(
    ("port", "ports"),
    [
        pytest.param(0, {"ports": []}, id="none"),
        pytest.param(1024, {}, id="the first one by default"),
        pytest.param(65535, {}, id="the last one by default"),
        pytest.param(443, {"ports": [80, 443]}, id="a listed one"),
        pytest.param(8001, {"ports": ["8000-8001"]}, id="one of a listed range"),
    ],
)
def test_the_router_listens_on_port(port: int, ports: dict[str, Any]) -> None:
    check({"port": port}, ports)


@pytest.mark.parametrize(
    ("port", "ports"),
    [
        pytest.param(80, {}, id="one of the system by default"),
        pytest.param(1023, {}, id="the last one of the system by default"),
        pytest.param(8080, {"ports": []}, id="any if none is listed"),
        pytest.param(8002, {"ports": ["8000-8001", "9000"]}, id="one that is not listed"),
    ],
)
def test_the_router_does_not_listen_on_port(port: int, ports: dict[str, Any]) -> None:
    with pytest.raises(UserMistake, match=f"may not listen on port {port}") as refusal:
        check({"port": port}, ports)
    assert "`ports` of the deploy target" in refusal.value.hint


@pytest.mark.parametrize("ports", ["http", "0", "65536", "9-8", "8000-", "-1", "1-2-3"])
def test_no_range_of_ports_is(ports: str) -> None:
    with pytest.raises(ConfigMistake, match=f"'{ports}' is no port and no range"):
        decode_plain({"ports": [ports]}, ProcessTarget, what="target")


async def test_nothing_starts_on_a_port_that_is_not_allowed(service: Service) -> None:
    service.target = {"ports": ["1-2"]}
    result = await service.commit("one").run("PROCESS_SYNC")
    assert result.status is StageStatus.FAILURE
    assert f"may not listen on port {service.port}" in result.message
    assert await service.client.status(service.application_id) is None
