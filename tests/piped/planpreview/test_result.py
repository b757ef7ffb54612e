# SPDX-License-Identifier: Apache-2.0
"""Results are valid whatever plugins return, and small enough for one message."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.deployment import SyncStrategy
from pipecd.model.document import from_json, to_json
from pipecd.piped.planning.plugin_previews import PluginPreview, PluginPreviews
from pipecd.piped.planpreview.result import add_plugin_results, mask, truncate
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
    PluginPlanPreviewResult,
)
from pipecd.proto.plugin.planpreview_pb2 import PlanPreviewResult
from pipecd.secrets.masking import Masking


def answered(*no_change: bool) -> list[PluginPreview]:
    return [
        PluginPreview(f"p{n}", [PlanPreviewResult(no_change=each)])
        for n, each in enumerate(no_change)
    ]


@pytest.mark.parametrize(
    ("previews", "expected"),
    [
        pytest.param(answered(True, True), True, id="nothing changes if all say so"),
        pytest.param(answered(True, False), False, id="one change is a change"),
        pytest.param([PluginPreview("p", [])], False, id="a plugin without results"),
        pytest.param([], False, id="without results"),
    ],
)
def test_no_change(previews: list[PluginPreview], expected: bool) -> None:
    result = ApplicationPlanPreviewResult()
    add_plugin_results(result, SyncStrategy.QUICK_SYNC, PluginPreviews(previews))
    assert result.no_change is expected


def result_of(*sizes: int) -> PlanPreviewCommandResult:
    line = b"+ one line of a diff\n"
    details = [(line * (size // len(line) + 1))[:size] for size in sizes]
    plugins = [PluginPlanPreviewResult(plugin_name="p", plan_details=each) for each in details]
    return PlanPreviewCommandResult(
        results=[
            ApplicationPlanPreviewResult(plan_details=each.plan_details, plugin_plan_results=[each])
            for each in plugins
        ]
    )


@given(st.lists(st.integers(0, 5_000), max_size=8))
def test_long_details_are_truncated_and_short_ones_complete(sizes: list[int]) -> None:
    result, before = result_of(*sizes), result_of(*sizes)
    truncate(result, limit=4_000)
    shown = [each.plan_details for each in result.results]
    # Each cut adds a line of its own that says so.
    assert sum(map(len, shown)) * 2 <= 4_000 + 100 * len(sizes)
    for details, whole in zip(shown, (each.plan_details for each in before.results), strict=True):
        assert details == whole or b"more bytes are not shown" in details
        assert details == whole or len(whole) > 4_000 // (2 * len(sizes))
    if sum(sizes) * 2 <= 4_000:
        assert result == before


def test_truncated_details_end_at_a_line_with_the_number_of_missing_bytes() -> None:
    result = result_of(100)
    truncate(result, limit=60)
    assert (
        result.results[0].plan_details
        == b"+ one line of a diff\n... (79 more bytes are not shown)\n"
    )
    only = PlanPreviewCommandResult(
        results=[ApplicationPlanPreviewResult(plan_details="ä".encode() * 50)]
    )
    truncate(only, limit=5)
    assert only.results[0].plan_details == "ää... (96 more bytes are not shown)\n".encode()


def test_a_hundred_large_diffs_can_be_sent() -> None:
    result = result_of(*[100_000] * 100)
    truncate(result)
    assert len(to_json(result)) < 4 * 1024 * 1024 - 100_000


def test_the_output_is_what_upstream_writes_and_reads() -> None:
    result = PlanPreviewCommandResult(command_id="c", piped_id="p")
    application = result.results.add(application_id="a", plugin_names=["kubernetes"])
    add_plugin_results(
        application,
        SyncStrategy.PIPELINE,
        PluginPreviews(
            [
                PluginPreview(
                    "kubernetes",
                    [PlanPreviewResult(deploy_target="dev", summary="s", details=b"d")],
                )
            ]
        ),
    )
    written = json.loads(to_json(result))
    plan = {
        "plugin_name": "kubernetes",
        "deploy_target": "dev",
        "plan_summary": "cw==",
        "plan_details": "ZA==",
    }
    assert written == {
        "command_id": "c",
        "piped_id": "p",
        "results": [
            {
                "application_id": "a",
                "sync_strategy": int(SyncStrategy.PIPELINE),
                "plan_summary": "cw==",
                "plan_details": "ZA==",
                "plugin_plan_results": [plan],
                "plugin_names": ["kubernetes"],
            }
        ],
    }
    assert from_json(to_json(result), PlanPreviewCommandResult) == result


def test_secrets_in_invalid_utf8_are_masked() -> None:
    result = ApplicationPlanPreviewResult(
        error="bad password1",
        plan_summary=b"password1",
        plugin_plan_results=[PluginPlanPreviewResult(plan_details=b"\xff password1")],
    )
    mask(result, Masking(["password1"]))
    assert "password1" not in str(result)
    assert result.plugin_plan_results[0].plan_details.decode().startswith("\ufffd ")
