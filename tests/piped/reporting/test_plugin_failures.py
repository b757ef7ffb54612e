# SPDX-License-Identifier: Apache-2.0
"""What a piped runs without is reported when it changes, and counted."""

import asyncio

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from pipecd.piped.pluginhost.registry import PluginRegistry, StartFailure
from pipecd.piped.reporting.plugin_failures import PluginFailureMetrics, PluginFailureReporter
from servers.control_plane import OpenControlPlane, running
from servers.polling import eventually

REPORT = "ReportPluginFailures"


async def test_failures_are_reported_without_secrets_whenever_they_change(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        plugins = PluginRegistry()
        reporter = PluginFailureReporter(
            api=api, plugins=plugins, hide=lambda text: text.replace("hunter22", "******")
        )

        async def reported() -> list[tuple[str, str, str]]:
            listed = await plane.cases.pipeds.plugin_failures(plane.piped.id, by=plane.admin)
            return [(each.plugin, each.target, each.reason) for each in listed]

        async def is_reported(expected: list[tuple[str, str, str]]) -> bool:
            return await reported() == expected

        async with running(reporter):
            plugins.failed(StartFailure("vm", "the key hunter22 is wrong"))
            await eventually(lambda: is_reported([("vm", "", "the key ****** is wrong")]))
            plugins.failed(StartFailure("vm", "no region", target="far"))
            await eventually(
                lambda: is_reported(
                    [("vm", "", "the key ****** is wrong"), ("vm", "far", "no region")]
                )
            )
            # Another attempt with the same result is no news.
            plugins.failed(StartFailure("vm", "no region", target="far"))
        assert plane.gate.calls.count(REPORT) == 2


async def test_a_control_plane_of_upstream_is_asked_once(open_plane: OpenControlPlane) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        plane.gate.refusals[REPORT] = grpc.StatusCode.UNIMPLEMENTED
        plugins = PluginRegistry(failures=[StartFailure("vm", "no region")])
        async with asyncio.timeout(10):
            await PluginFailureReporter(api=api, plugins=plugins, hide=str).run()
        assert plane.gate.calls.count(REPORT) == 1


def test_each_failure_is_one_sample() -> None:
    registry = CollectorRegistry()
    plugins = PluginRegistry(
        failures=[StartFailure("ecs", "no region", target="far"), StartFailure("vm", "it ended")]
    )
    registry.register(PluginFailureMetrics(plugins))
    samples = [line for line in generate_latest(registry).decode().splitlines() if "#" not in line]
    assert samples == [
        'piped_plugin_failures{plugin="ecs",target="far"} 1.0',
        'piped_plugin_failures{plugin="vm",target=""} 1.0',
    ]
