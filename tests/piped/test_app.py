# SPDX-License-Identifier: Apache-2.0
"""A whole piped: it registers, deploys what is pushed, and ends when it should."""

import asyncio
import base64
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_piped
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.proto.service import piped_pb2
from servers.piped import piped_config
from servers.samples import WAITING_CART
from servers.server import free_port


def settings(plane: Any, remote: str, *, key: str = "") -> PipedSettings:
    made = plane.registered
    rest = f"  git: {{username: ann, password: {base64.b64encode(b's3cret').decode()}}}\n"
    place = {"address": plane.address, "remote": remote}
    text = piped_config(made.id, key or made.key, **place, rest=rest)
    config = read_piped(text, file="piped.yaml", catalog=load_catalog())
    return PipedSettings(config=config, insecure=True, workspace=plane.directory / "work")


class Running:
    """A piped in a task."""

    def __init__(self, given: PipedSettings) -> None:
        self._given = given
        self._ready = asyncio.Event()

    async def __aenter__(self) -> "asyncio.Task[None]":
        self._task = asyncio.create_task(run_piped(self._given, ready=self._ready.set))
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait({self._task})


async def test_a_push_becomes_a_finished_deployment(
    open_plane: Any, origin: Any, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")

        async def succeeded(commit: str) -> bool:
            application = await plane.application(id_)
            last = application.most_recently_successful_deployment
            return last.trigger.commit.hash == commit

        async with Running(settings(plane, origin.remote)) as piped:
            await eventually(lambda: succeeded(origin.git("rev-parse", "HEAD")), 20)
            commit = origin.commit({"cart/x": "1"}, "the second")
            pushed = time.perf_counter()
            await eventually(lambda: succeeded(commit), 20)
            took = time.perf_counter() - pushed
            assert took < 3
            # Working copies hold secrets and do not stay.
            work = plane.directory / "work" / "deployments"
            await eventually(lambda: not list(work.glob("*")))
            assert not piped.done()
        assert piped.cancelled()


async def test_piped_registers_itself_without_secrets(
    open_plane: Any, origin: Any, eventually: Any
) -> None:
    origin.commit({"README": ""})
    async with open_plane() as plane:
        async with Running(settings(plane, origin.remote)):
            await eventually(lambda: plane.gate.count("ReportStat"))
            piped = await plane.cases.pipeds.get(plane.registered.id, by=plane.admin)
        assert [(r.id, r.remote, r.branch) for r in piped.repositories] == [
            ("site", origin.remote, "main")
        ]
        assert piped.version
        assert piped.secret_encryption.type == "NONE"
        assert "username: ann" in piped.config
        assert base64.b64encode(b"s3cret").decode() not in piped.config
        assert base64.b64encode(plane.registered.key.encode()).decode() not in piped.config


async def test_a_restart_command_is_reported_and_ends_piped_cleanly(
    open_plane: Any, origin: Any, eventually: Any
) -> None:
    origin.commit({"README": ""})
    async with open_plane() as plane:
        async with Running(settings(plane, origin.remote)) as piped:
            command = await plane.cases.pipeds.restart(plane.registered.id, by=plane.admin)
            async with asyncio.timeout(10):
                await piped
        handled = await plane.cases.commands.get(command, by=plane.admin)
        assert handled.status == CommandStatus.SUCCEEDED


async def test_a_piped_that_waits_for_its_control_plane_is_healthy(
    open_plane: Any, origin: Any, eventually: Any
) -> None:
    async with open_plane() as plane:
        given = settings(plane, origin.remote)
    port = free_port()
    waiting = asyncio.create_task(
        run_piped(replace(given, admin_host="127.0.0.1", admin_port=port))
    )
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

        async def is_alive() -> bool:
            try:
                return (await http.get("/healthz")).status_code == 200
            except httpx2.TransportError:
                return False

        await eventually(is_alive)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_a_wrong_key_ends_piped_at_once(open_plane: Any, origin: Any) -> None:
    async with open_plane() as plane:
        with pytest.raises(Unauthenticated):
            await run_piped(settings(plane, origin.remote, key="wrong"))


async def test_a_workspace_belongs_to_one_piped(open_plane: Any, origin: Any) -> None:
    async with open_plane() as plane:
        given = settings(plane, origin.remote)
        async with Running(given):
            with pytest.raises(
                UserMistake, match=r"another piped .process .* is using .*--workspace"
            ):
                await run_piped(replace(given, grace=0))


async def test_a_piped_waits_for_the_previous_one_to_end(open_plane: Any, origin: Any) -> None:
    async with open_plane() as plane:
        given = settings(plane, origin.remote)
        ready = asyncio.Event()
        async with Running(given):
            following = asyncio.create_task(run_piped(given, ready=ready.set))
            await asyncio.sleep(0.05)
            assert not following.done()
        await ready.wait()
        following.cancel()
        await asyncio.wait({following})


async def test_piped_reconnects_to_a_restarted_control_plane(
    open_plane: Any, origin: Any, eventually: Any, tmp_path: Path
) -> None:
    import grpc

    origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        await plane.add_application("cart")
        async with Running(settings(plane, origin.remote)), plane.api() as api:
            await eventually(lambda: plane.gate.count("ReportDeploymentCompleted"))
            plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
            origin.commit({"cart/x": "1"}, "while it was away")
            tried = plane.gate.count("CreateDeployment")
            await eventually(lambda: plane.gate.count("CreateDeployment") > tried)
            plane.gate.refusals.clear()

            async def messages() -> bool:
                answer = await api.list_not_completed_deployments(
                    piped_pb2.ListNotCompletedDeploymentsRequest()
                )
                done = plane.gate.count("ReportDeploymentCompleted")
                return done >= 2 or any(
                    d.trigger.commit.message == "while it was away"
                    and d.status != DeploymentStatus.PENDING
                    for d in answer.deployments
                )

            await eventually(messages, 30)
