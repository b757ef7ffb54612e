# SPDX-License-Identifier: Apache-2.0
"""Unregistered and changed applications are reported as soon as they are in Git."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pipecd.config.application import is_application_file
from pipecd.config.catalog import load_catalog
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.backoff import Backoff
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.reporting.app_configs import AppConfigReporter, reported_directory
from pipecd.piped.source.configs import ApplicationConfigs
from servers.control_plane import OpenControlPlane
from servers.origin import Origin
from servers.polling import eventually


def app(name: str, extra: str = "") -> str:
    return f"apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  name: {name}\n{extra}"


@asynccontextmanager
async def reporting(plane: Any, remote: str, **settings: Any) -> AsyncGenerator[AppConfigReporter]:
    async with (
        plane.piped.api() as api,
        open_mirrors(
            [Repository("site", remote, "main")],
            directory=plane.directory / "mirrors",
            credentials=GitCredentials(),
        ) as mirrors,
    ):
        reporter = AppConfigReporter(
            api=api,
            applications=ApplicationCache(api, interval=0.03),
            heads=RepositoryHeads(mirrors),
            mirrors=mirrors,
            configs=ApplicationConfigs(load_catalog()),
            commands=CommandCache(api, interval=0.03),
            schedule=RefreshSchedule(settings.pop("every", 1000.0)),
            piped_id=plane.piped.id,
            **settings,
        )
        async with asyncio.TaskGroup() as loops:
            parts = (reporter.applications, reporter.commands, reporter.heads, reporter)
            tasks = [loops.create_task(part.run()) for part in parts]
            yield reporter
            for task in tasks:
                task.cancel()


async def unregistered(plane: Any) -> dict[str, tuple[str, str]]:
    listed = await plane.cases.application_reports.list_unregistered(by=plane.admin)
    return {info.name: (info.path, info.config_filename) for info in listed}


async def test_unregistered_applications_are_reported(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    origin.commit(
        {
            "cart/app.pipecd.yaml": app("cart"),
            "cart/blue.pipecd.yaml": app("blue"),
            "old/.pipe.yaml": app("old"),
            "app.pipecd.yaml": app("root"),
            "a/app.pipecd.yaml": app("short"),
            "bad/app.pipecd.yaml": "kind: [",
            "nameless/app.pipecd.yaml": app('""'),
            "other/app.yaml": app("other"),
            os.fsdecode(b"caf\xe9/app.pipecd.yaml"): app("unspeakable"),
        }
    )
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        await plane.piped.add_application("cart")
        async with reporting(plane, origin.remote):
            await eventually(lambda: unregistered(plane))
            assert await unregistered(plane) == {
                "blue": ("cart", "blue.pipecd.yaml"),
                "old": ("old", ".pipe.yaml"),
                "root": ("./", "app.pipecd.yaml"),
                "short": ("./a", "app.pipecd.yaml"),
            }
            origin.commit({"new/app.pipecd.yaml": app("new")})
            await eventually(lambda: is_reported(plane, "new"))
            await plane.piped.add_application("new")
            await eventually(lambda: is_registered(plane, "new"))


async def test_an_invalid_file_is_logged_once_with_every_error(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    broken = app("bad", "  labels: 3\n  pipeline: {stages: 5}\n")
    origin.commit({"bad/app.pipecd.yaml": broken, "nameless/app.pipecd.yaml": app('""')})
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        with capture_logs() as logs:
            async with reporting(plane, origin.remote):
                for name in ("one", "two"):
                    origin.commit({f"{name}/app.pipecd.yaml": app(name)})
                    await eventually(lambda name=name: is_reported(plane, name))
                origin.commit({"bad/app.pipecd.yaml": app("good")})
                await eventually(lambda: is_reported(plane, "good"))
    errors = {e["path"]: e["error"] for e in logs if e["event"] == "application file is invalid"}
    assert len([e for e in logs if e["event"] == "application file is invalid"]) == 2
    assert "spec.labels" in errors["bad/app.pipecd.yaml"]
    assert "spec.pipeline.stages" in errors["bad/app.pipecd.yaml"]
    assert "bad/app.pipecd.yaml:5" in errors["bad/app.pipecd.yaml"]
    assert "spec.name must be set" in errors["nameless/app.pipecd.yaml"]
    fixed = [e["path"] for e in logs if e["event"] == "application file is valid again"]
    assert fixed == ["bad/app.pipecd.yaml"]


async def is_reported(plane: Any, name: str) -> bool:
    return name in await unregistered(plane)


async def is_registered(plane: Any, name: str) -> bool:
    return name not in await unregistered(plane)


async def test_only_applications_with_the_labels_of_the_selector_are_reported(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    origin.commit(
        {
            "one/app.pipecd.yaml": app("one", "  labels: {env: dev, team: x}\n"),
            "two/app.pipecd.yaml": app("two", "  labels: {env: prod}\n"),
        }
    )
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        async with reporting(plane, origin.remote, selector={"env": "dev"}):
            await eventually(lambda: unregistered(plane))
        assert list(await unregistered(plane)) == ["one"]


async def test_a_changed_name_label_or_description_is_reported_once(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    origin.commit({"cart/app.pipecd.yaml": app("cart")})
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        id_ = await plane.piped.add_application("cart")

        async def facts() -> tuple[str, str, dict[str, str]]:
            a = await plane.application(id_)
            return a.name, a.description, dict(a.labels)

        async def are(expected: tuple[str, str, dict[str, str]]) -> bool:
            return await facts() == expected

        async with reporting(plane, origin.remote):
            await eventually(lambda: plane.gate.count("ListApplications") > 5)
            assert plane.gate.count("UpdateApplicationConfigurations") == 0
            more = "  description: buys things\n  labels: {team: x}\n"
            origin.commit({"cart/app.pipecd.yaml": app("basket", more)})
            await eventually(lambda: are(("basket", "buys things", {"team": "x"})))
            before = plane.gate.count("ListApplications")
            await eventually(lambda: plane.gate.count("ListApplications") > before + 5)
            assert plane.gate.count("UpdateApplicationConfigurations") <= 2


@pytest.mark.parametrize(
    "rpc", ["UpdateApplicationConfigurations", "ReportUnregisteredApplicationConfigurations"]
)
async def test_a_report_that_failed_is_sent_again_without_a_new_commit(
    open_plane: OpenControlPlane,
    origin: Origin,
    monkeypatch: pytest.MonkeyPatch,
    rpc: str,
) -> None:
    monkeypatch.setattr("pipecd.piped.reporting.app_configs._BACKOFF", Backoff(0.02, 0.05))
    origin.commit(
        {
            "cart/app.pipecd.yaml": app("cart", "  description: buys things\n"),
            "new/app.pipecd.yaml": app("new"),
        }
    )
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        id_ = await plane.piped.add_application("cart")
        plane.gate.refusals[rpc] = grpc.StatusCode.FAILED_PRECONDITION

        async def is_stored() -> bool:
            return (await plane.application(id_)).description == "buys things"

        async with reporting(plane, origin.remote) as reporter:
            await eventually(lambda: plane.gate.count(rpc))
            # Until nothing else lets it scan the repository.
            polls = reporter.applications.poll_count
            await eventually(lambda: reporter.applications.poll_count > polls + 5)
            del plane.gate.refusals[rpc]
            await eventually(is_stored)
            await eventually(lambda: is_reported(plane, "new"))


async def test_a_list_that_the_control_plane_lost_is_sent_again(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    origin.commit({"one/app.pipecd.yaml": app("one")})
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        async with reporting(plane, origin.remote, every=0.05):
            name = "ReportUnregisteredApplicationConfigurations"
            await eventually(lambda: plane.gate.count(name) >= 3)


async def test_an_empty_list_is_sent_once(open_plane: OpenControlPlane, origin: Origin) -> None:
    origin.commit({"README": ""})
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        async with reporting(plane, origin.remote, every=0.02) as reporter:
            name = "ReportUnregisteredApplicationConfigurations"
            await eventually(lambda: plane.gate.count(name))
            polls = reporter.applications.poll_count
            await eventually(lambda: reporter.applications.poll_count > polls + 5)
            assert plane.gate.count(name) == 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("app.pipecd.yaml", True),
        ("a/b/app.pipecd.yaml", True),
        ("a/.pipecd.yaml", True),
        ("a/x.pipecd.yaml", True),
        ("a/.pipe.yaml", True),
        ("a/x.pipe.yaml", False),
        ("a/app.pipecd.yml", False),
        (".pipe/x.yaml", False),
    ],
)
def test_the_names_of_application_files(path: str, expected: bool) -> None:
    assert is_application_file(path) is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [("app.pipecd.yaml", "./"), ("a/app.pipecd.yaml", "./a"), ("ab/app.pipecd.yaml", "ab")],
)
def test_a_reported_directory_has_at_least_two_characters(path: str, expected: str) -> None:
    assert reported_directory(path) == expected
