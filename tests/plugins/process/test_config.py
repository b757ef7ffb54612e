# SPDX-License-Identifier: Apache-2.0
"""The configuration of the process plugin."""

from operator import attrgetter
from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration, Replicas
from pipecd.plugins.process.config import (
    CONFIG,
    ProcessApplication,
    ProcessCanaryRolloutOptions,
    ProcessTarget,
    ProcessTrafficRoutingOptions,
)
from pipecd.plugins.process.release_files import ReleaseLimits


def app(**fields: Any) -> ProcessApplication:
    section = {"input": {"command": "./serve", **fields}}
    return decode_plain(section, ProcessApplication, what="process")


DEFAULTS = [
    ("input.args", ()),
    ("input.env", {}),
    ("input.working_directory", ""),
    ("input.port", 0),
    ("input.health_check.path", "/"),
    ("input.health_check.interval", Duration(1)),
    ("input.health_check.timeout", Duration(30)),
    ("input.replicas", 1),
    ("input.grace_period", Duration(10)),
    ("input.protocol", "HTTP"),
    ("input.limits.memory", 0),
    ("input.limits.processes", 0),
    ("input.limits.user", ""),
]


@pytest.mark.parametrize(("attribute", "expected"), DEFAULTS, ids=[name for name, _ in DEFAULTS])
def test_the_default_of(attribute: str, expected: object) -> None:
    assert attrgetter(attribute)(app()) == expected


@pytest.mark.parametrize(
    ("section", "message"),
    [
        pytest.param({}, "input: must be set", id="no input"),
        pytest.param({"input": {}}, "command must be set", id="no command"),
        pytest.param(
            {"input": {"command": "a", "port": 65536}}, "65535", id="a port that does not exist"
        ),
        pytest.param({"input": {"command": "a", "port": -1}}, "0", id="a negative port"),
        pytest.param({"input": {"command": "a", "replicas": -1}}, "1", id="negative replicas"),
        pytest.param(
            {"input": {"command": "a", "gracePeriod": "-1s"}},
            "must be greater than or equal to 0",
            id="a negative grace period",
        ),
        pytest.param(
            {"input": {"command": "a", "healthCheck": {"path": "healthz"}}},
            "'healthz' must begin with /",
            id="a relative path",
        ),
        pytest.param(
            {"input": {"command": "a", "healthCheck": {"path": "/a b"}}},
            "must contain no blank",
            id="a path with a blank",
        ),
        pytest.param(
            {"input": {"command": "../serve"}},
            "'../serve' must lead to a file in the directory of the application",
            id="a command outside of the application",
        ),
        pytest.param(
            {"input": {"command": "a", "workingDirectory": "/etc"}},
            "'/etc' must lead to a directory of the application",
            id="an absolute working directory",
        ),
        pytest.param(
            {"input": {"command": "a", "workingDirectory": ".."}},
            "'..' must lead to a directory of the application",
            id="a working directory above the application",
        ),
        pytest.param(
            {"input": {"command": "a", "workingDirectory": "a/../.."}},
            "'a/../..' must lead to a directory of the application",
            id="a working directory that leads above the application",
        ),
        pytest.param(
            {"input": {"command": "a", "env": {"A=B": "x"}}},
            "'A=B' is not the name of an environment variable",
            id="a variable that cannot be set",
        ),
        pytest.param(
            {"input": {"command": "a", "protocol": "UDP"}}, "protocol", id="an unknown protocol"
        ),
        pytest.param(
            {"input": {"command": "a", "healthCheck": {"timeout": "-1s"}}},
            "must be longer than 0s",
            id="a negative timeout",
        ),
        pytest.param(
            {"input": {"command": "a", "healthCheck": {"interval": "-1s"}}},
            "must be longer than 0s",
            id="a negative interval",
        ),
    ],
)
def test_an_application_is_refused_with(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        decode_plain(section, ProcessApplication, what="process")


def test_every_key_of_the_input_is_read() -> None:
    fields: dict[str, Any] = {
        "command": "./serve",
        "args": ["-v"],
        "env": {"A": "b"},
        "workingDirectory": "bin",
        "port": 8080,
        "protocol": "TCP",
        "healthCheck": {"path": "/healthz", "interval": "2s", "timeout": "1m0s"},
        "replicas": 3,
        "gracePeriod": "5s",
        "limits": {"memory": "256Mi", "processes": 5, "user": "www"},
    }
    assert app(**fields).input.model_dump(mode="json", by_alias=True) == fields


def test_a_canary_has_one_replica_by_default() -> None:
    assert decode_plain({}, ProcessCanaryRolloutOptions, what="stage").replicas == Replicas(1)


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        pytest.param({"primary": 70}, (70, 30), id="by the share of primary"),
        pytest.param({"canary": "20%"}, (80, 20), id="by the share of canary"),
        pytest.param({"canary": 0}, (100, 0), id="nothing to canary"),
        pytest.param({"primary": 0}, (0, 100), id="nothing to primary"),
        pytest.param({"primary": 60, "canary": 40}, (60, 40), id="by both if they add up"),
        pytest.param({}, (100, 0), id="all to primary by default"),
    ],
)
def test_the_traffic_split(options: dict[str, Any], shares: tuple[int, int]) -> None:
    assert decode_plain(options, ProcessTrafficRoutingOptions, what="stage").shares() == shares


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"canary": 101}, "must be from 0 to 100", id="more than 100"),
        pytest.param({"primary": -1}, "must be from 0 to 100", id="a negative share"),
        pytest.param(
            {"primary": 60, "canary": 60}, "must add up to 100", id="shares that do not add up"
        ),
    ],
)
def test_an_invalid_traffic_split_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        decode_plain(options, ProcessTrafficRoutingOptions, what="stage")


def test_the_router_listens_on_loopback_by_default() -> None:
    target = decode_plain({}, ProcessTarget, what="target")
    assert (target.host, target.directory, target.status_port) == ("127.0.0.1", "", 0)
    assert target.variables == ()


def test_proxies_on_the_same_machine_are_trusted_by_default() -> None:
    target = decode_plain({}, ProcessTarget, what="target")
    assert target.trusted_proxies == ("127.0.0.0/8", "::1/128")
    given = decode_plain({"trustedProxies": []}, ProcessTarget, what="target")
    assert given.trusted_proxies == ()


def test_a_target_limits_releases() -> None:
    given = decode_plain({"releaseFiles": 7, "releaseSize": "1Ki"}, ProcessTarget, what="target")
    assert given.release_limits == ReleaseLimits(7, 1024)
    with pytest.raises(ConfigMistake, match="releaseFiles"):
        decode_plain({"releaseFiles": -1}, ProcessTarget, what="target")


def test_a_trusted_proxy_is_a_network() -> None:
    with pytest.raises(ConfigMistake, match=r"'proxy\.example' is no address and no network"):
        decode_plain({"trustedProxies": ["proxy.example"]}, ProcessTarget, what="target")


def test_a_target_lists_names_of_variables() -> None:
    with pytest.raises(ConfigMistake, match="'A=B' is not the name of an environment variable"):
        decode_plain({"variables": ["HOME", "A=B"]}, ProcessTarget, what="target")


def test_the_directory_of_a_target_is_absolute() -> None:
    with pytest.raises(ConfigMistake, match="'programs' must be an absolute path"):
        decode_plain({"directory": "programs"}, ProcessTarget, what="target")


def test_the_stages_of_a_pipeline() -> None:
    assert set(CONFIG.stages) == {
        "PROCESS_SYNC",
        "PROCESS_CANARY_ROLLOUT",
        "PROCESS_TRAFFIC_ROUTING",
        "PROCESS_PRIMARY_ROLLOUT",
        "PROCESS_CANARY_CLEAN",
    }
