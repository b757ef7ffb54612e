# SPDX-License-Identifier: Apache-2.0
"""Versions, strategy, live state, drift and plan preview."""

from typing import Any

import pytest

from pipecd.plugins.aws_lambda.livestate import function_health
from pipecd.plugins.aws_lambda.traffic import Traffic
from pipecd.sdk import Health, SyncStatus, SyncStrategy, UserMistake
from plugins.aws_lambda.testbed import IMAGE, Application

OLD, NEW = "1111111aaaa", "2222222bbbb"
CODE = {"handler": "a.b", "runtime": "python3.12"}
SOURCES: list[tuple[dict[str, Any], tuple[str, str, str]]] = [
    ({}, ("v1", "shop", f"{IMAGE}:v1")),
    (
        {"s3Bucket": "b", "s3Key": "dir/k.zip", "s3ObjectVersion": "7", **CODE},
        ("7", "dir/k.zip", "https://console.aws.amazon.com/s3/object/b?prefix=dir/k.zip"),
    ),
    ({"s3Bucket": "b", "s3Key": "k.zip", **CODE}, ("unknown", "", "")),
    (
        {"source": {"git": "git@github.com:example/shop.git", "ref": 1234567}, **CODE},
        ("1234567", "example/shop", "https://github.com/example/shop/commit/1234567"),
    ),
    (
        {"source": {"git": "ssh://git@bitbucket.org/example/shop.git", "ref": "v1"}, **CODE},
        ("v1", "example/shop", "https://bitbucket.org/example/shop/commits/v1"),
    ),
    ({"source": {"git": "https://git.example.com/x/y", "ref": "v1"}, **CODE}, ("v1", "", "")),
]


@pytest.mark.parametrize(("source", "expected"), SOURCES)
async def test_the_version_is_that_of_the_code(
    application: Application, source: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    plan = application.commit(OLD, application.function(**source)).plan_context()
    [version] = await application.plugin.versions(plan)
    assert (version.version, version.name, version.url) == expected


async def test_a_change_uses_the_pipeline_and_says_why(application: Application) -> None:
    old, new = application.commit(OLD), application.commit(NEW, application.function("v2"))
    chosen = await application.plugin.strategy(new.plan_context(running=old.source))
    assert chosen is not None
    assert chosen.strategy is SyncStrategy.PIPELINE
    assert chosen.summary == "Sync with pipeline to update version from v1 to v2"
    broken = application.commit("3333333", "nothing")
    chosen = await application.plugin.strategy(new.plan_context(running=broken.source))
    assert chosen is not None
    assert chosen.summary == "Sync with the specified pipeline"


async def test_the_live_state_is_the_function_with_its_traffic(application: Application) -> None:
    new = application.commit(NEW, application.function("v2"), running=await application.deploy(OLD))
    await new.run("LAMBDA_CANARY_ROLLOUT")
    await new.run("LAMBDA_PROMOTE", {"percent": 20}, index=1)
    live = await application.plugin.live_state(new.live_context())
    [function] = live.resources
    assert (function.kind, function.name, function.health) == (
        "Function",
        application.name,
        Health.HEALTHY,
    )
    assert function.id.endswith(f":function:{application.name}")
    assert function.target == "dev"
    assert function.metadata["Traffic"] == "version 2 20%, version 1 80%"
    assert live.sync.status is SyncStatus.SYNCED
    # Within the interval of the deploy target it is not read again.
    application.amazon.calls.clear()
    await application.plugin.live_state(new.live_context())
    assert application.amazon.calls == []


async def test_a_function_that_is_not_deployed_or_of_others_is_out_of_sync(
    application: Application,
) -> None:
    bench = application.commit(OLD)
    live = await application.plugin.live_state(bench.live_context())
    assert (live.resources, live.sync.status) == ((), SyncStatus.OUT_OF_SYNC)
    assert live.sync.summary == f"Function {application.name} is not deployed"
    await bench.run("LAMBDA_SYNC")
    bench.application_id = "another"
    live = await application.plugin.live_state(bench.live_context())
    assert live.sync.summary == f"Function {application.name} has not the tags of this application"


async def test_a_manifest_that_cannot_be_read_is_invalid(application: Application) -> None:
    live = await application.plugin.live_state(application.commit(OLD, "x: [").live_context())
    assert live.sync.status is SyncStatus.INVALID_CONFIG


async def test_drift_shows_what_others_changed_without_values_of_variables(
    application: Application,
) -> None:
    function = application.function(
        environments={"KEY": "new secret"}, architectures=[{"name": "x86_64"}], tags={"team": "a"}
    )
    bench = await application.deploy(OLD, function)
    live = await application.plugin.live_state(bench.live_context())
    assert live.sync.status is SyncStatus.SYNCED, live.sync.details
    application.aws.update_function_configuration(
        FunctionName=application.name,
        MemorySize=512,
        Environment={"Variables": {"KEY": "old secret"}},
    )
    application.plugin._open["dev"].live.invalidate()
    live = await application.plugin.live_state(bench.live_context())
    assert live.sync.status is SyncStatus.OUT_OF_SYNC
    assert live.sync.summary == "The function manifest is not synced"
    assert live.sync.details == (
        "Diff between the defined state in Git at commit 1111111 and actual live state:\n\n"
        "--- Actual   (LiveState)\n+++ Expected (Git)\n\n"
        "  spec:\n    environments:\n      #spec.environments.KEY\n"
        "-     KEY: *****\n+     KEY: *****\n\n"
        "    #spec.memory\n-   memory: 512\n+   memory: 128\n\n\n"
    )
    key = f"pipecd.dev/v1beta1:LambdaFunction:default:{application.name}"
    application.spec = {
        "driftDetection": {"ignoreFields": [f"{key}#spec.memory", f"{key}#spec.environments"]}
    }
    ignoring = application.commit(OLD, function)
    live = await application.plugin.live_state(ignoring.live_context())
    assert live.sync.status is SyncStatus.SYNCED


async def test_a_preview_compares_manifests(application: Application) -> None:
    old, new = application.commit(OLD), application.commit(NEW, application.function("v2"))
    [same] = await application.plugin.preview(old.preview_context(running=old.source))
    assert (same.no_change, same.summary) == (True, "No changes were detected")
    [changed] = await application.plugin.preview(new.preview_context(running=old.source))
    assert (changed.target, changed.summary) == ("dev", "1 change was detected")
    assert f"-   image: {IMAGE}:v1\n+   image: {IMAGE}:v2" in changed.details
    [first] = await application.plugin.preview(new.preview_context())
    assert first.summary == f"Function {application.name} is created"


@pytest.mark.parametrize(
    ("shown", "health", "text"),
    [
        ({"State": "Active"}, Health.HEALTHY, ""),
        (
            {"State": "Pending", "StateReason": "creating", "StateReasonCode": "Creating"},
            Health.PROGRESSING,
            "The function is pending: creating: Creating",
        ),
        (
            {"State": "Active", "LastUpdateStatus": "InProgress"},
            Health.PROGRESSING,
            "The function is being updated",
        ),
        (
            {
                "State": "Active",
                "LastUpdateStatus": "Failed",
                "LastUpdateStatusReason": "no image",
                "LastUpdateStatusReasonCode": "ImageDeleted",
            },
            Health.HEALTHY,
            "The last update has failed: no image: ImageDeleted",
        ),
        ({"State": "Active", "LastUpdateStatus": "Successful"}, Health.HEALTHY, ""),
        ({"State": "Inactive"}, Health.UNHEALTHY, "The function is inactive"),
        ({"State": "Failed"}, Health.UNHEALTHY, "The function is failed"),
        ({}, Health.UNKNOWN, "The function is unknown"),
    ],
)
def test_health(shown: dict[str, str], health: Health, text: str) -> None:
    assert function_health(shown) == (health, text)


def test_traffic_is_stored_as_upstream_stores_it() -> None:
    stored = '{"primary": {"version": "2", "percent": 10.0}, "secondary": {"version": "1", "percent": 90.0}}'
    traffic = Traffic("2", 10.0, "1")
    assert traffic.encode() == stored
    assert Traffic.decode(stored) == traffic
    upstream = '{"primary":{"version":"2","percent":100},"secondary":{"version":"1","percent":0}}'
    assert Traffic.decode(upstream) == Traffic("2")
    with pytest.raises(UserMistake, match="stored traffic cannot be read"):
        Traffic.decode("{}")
