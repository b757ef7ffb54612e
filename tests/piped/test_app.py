# SPDX-License-Identifier: Apache-2.0
"""A whole piped: it registers, deploys what is pushed, and ends when it should."""

import asyncio
import base64
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.piped.app import run_piped
from pipecd.proto.service import piped_pb2
from servers.control_plane import OpenControlPlane, running_piped
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import WAITING_CART
from servers.server import free_port

GIT_PASSWORD = f"git: {{username: ann, password: {base64.b64encode(b's3cret').decode()}}}\n"


async def test_a_push_becomes_a_finished_deployment(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        id_ = await plane.piped.add_application("cart")

        async def succeeded(commit: str) -> bool:
            application = await plane.application(id_)
            last = application.most_recently_successful_deployment
            return last.trigger.commit.hash == commit

        async with plane.piped.run(origin.remote, GIT_PASSWORD) as piped:
            await eventually(lambda: succeeded(origin.git("rev-parse", "HEAD")), 20)
            commit = origin.commit({"cart/x": "1"}, "the second")
            pushed = time.perf_counter()
            await eventually(lambda: succeeded(commit), 20)
            took = time.perf_counter() - pushed
            assert took < 3
            # Working copies hold secrets and do not stay.
            work = plane.piped.workspace / "deployments"
            await eventually(lambda: not list(work.glob("*")))
            assert not piped.done()
        assert piped.cancelled()


async def test_piped_registers_itself_without_secrets(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    origin.commit({"README": ""})
    async with open_plane() as plane:
        async with plane.piped.run(origin.remote, GIT_PASSWORD):
            await eventually(lambda: plane.gate.count("ReportStat"))
            piped = await plane.cases.pipeds.get(plane.piped.id, by=plane.admin)
        assert [(r.id, r.remote, r.branch) for r in piped.repositories] == [
            ("site", origin.remote, "main")
        ]
        assert piped.version
        assert piped.secret_encryption.type == "NONE"
        assert "username: ann" in piped.config
        assert base64.b64encode(b"s3cret").decode() not in piped.config
        assert base64.b64encode(plane.piped.key.encode()).decode() not in piped.config


async def test_a_restart_command_is_reported_and_ends_piped_cleanly(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    origin.commit({"README": ""})
    async with open_plane() as plane:
        async with plane.piped.run(origin.remote, GIT_PASSWORD) as piped:
            command = await plane.cases.pipeds.restart(plane.piped.id, by=plane.admin)
            async with asyncio.timeout(10):
                await piped
        handled = await plane.cases.commands.get(command, by=plane.admin)
        assert handled.status == CommandStatus.SUCCEEDED


async def test_a_piped_that_waits_for_its_control_plane_is_healthy(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    async with open_plane() as plane:
        given = plane.piped.settings(origin.remote)
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


async def test_a_wrong_key_ends_piped_at_once(open_plane: OpenControlPlane, origin: Origin) -> None:
    async with open_plane() as plane:
        with pytest.raises(Unauthenticated):
            await run_piped(replace(plane.piped, key="wrong").settings(origin.remote))


async def test_a_workspace_belongs_to_one_piped(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    async with open_plane() as plane:
        given = plane.piped.settings(origin.remote)
        async with running_piped(given):
            with pytest.raises(
                UserMistake, match=r"another piped .process .* is using .*--workspace"
            ):
                await run_piped(replace(given, grace=0))


async def test_a_piped_waits_for_the_previous_one_to_end(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    async with open_plane() as plane:
        given = plane.piped.settings(origin.remote)
        ready = asyncio.Event()
        async with running_piped(given):
            following = asyncio.create_task(run_piped(given, ready=ready.set))
            await asyncio.sleep(0.05)
            assert not following.done()
        await ready.wait()
        following.cancel()
        await asyncio.wait({following})


async def test_piped_reconnects_to_a_restarted_control_plane(
    open_plane: OpenControlPlane, origin: Origin, tmp_path: Path
) -> None:
    import grpc

    origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        await plane.piped.add_application("cart")
        async with plane.piped.run(origin.remote, GIT_PASSWORD), plane.piped.api() as api:
            await eventually(lambda: plane.gate.count("ReportDeploymentCompleted"))
            plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
            origin.commit({"cart/x": "1"}, "while it was away")
            tried = plane.gate.count("CreateDeploymentInOrder")
            await eventually(lambda: plane.gate.count("CreateDeploymentInOrder") > tried)
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
