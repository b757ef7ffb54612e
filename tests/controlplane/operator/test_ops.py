# SPDX-License-Identifier: Apache-2.0
"""`pipecd ops` as a whole: jobs, operator pages and metrics on the configured stores."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from pipecd.config.controlplane import (
    ControlPlaneSpec,
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)
from pipecd.controlplane.app import Operations, OpsSettings, operations
from pipecd.controlplane.command import ops
from pipecd.controlplane.insight.applications import applications_path
from pipecd.controlplane.operator.metrics import InstallationMetrics
from pipecd.controlplane.usecases.piped_connections import STATS_KEY, PipedConnections
from pipecd.model.clock import from_unix, to_unix, utc_now
from pipecd.model.errors import NotFound, Unavailable, UserMistake
from pipecd.observe.version import build_version
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from servers.control_plane import StartControlPlane
from servers.server import free_port

CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  datastore:
    type: SQLITE
    config:
      path: {directory}/pipecd.db
  filestore:
    type: LOCAL
    config:
      path: {directory}/files
"""


@pytest.fixture
def spec(tmp_path: Path) -> ControlPlaneSpec:
    """The same stores as those of `start_plane`."""
    return ControlPlaneSpec(
        datastore=DatastoreSpec(
            type="SQLITE", config=DatastoreConfig(path=str(tmp_path / "pipecd.db"))
        ),
        filestore=FilestoreSpec(type="LOCAL", config=FilestoreConfig(path=str(tmp_path / "files"))),
    )


@pytest.fixture
def settings(spec: ControlPlaneSpec) -> OpsSettings:
    return OpsSettings(spec, "127.0.0.1", 0, "127.0.0.1", 0)


@asynccontextmanager
async def admin_port(running: Operations) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.admin_port}") as http:
        yield http


async def test_ops_listens_on_both_ports(settings: OpsSettings) -> None:
    async with operations(settings) as running, admin_port(running) as http:
        assert (await http.get("/healthz")).text == "ok"
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/version")).text == build_version()
        pages = await http.get(f"http://127.0.0.1:{running.port}/projects")
        assert "There is no project yet" in pages.text


async def test_the_metrics_are_those_of_ops_and_of_online_pipeds(
    settings: OpsSettings,
) -> None:
    async with operations(settings) as running, admin_port(running) as http:
        cache, now = running.stores.cache, to_unix(utc_now())
        for piped, ago in (("b", 10), ("a", 100), ("silent", 200)):
            moment = from_unix(now - ago)
            await PipedConnections(cache, lambda at=moment: at).report(
                piped, f"up_{piped} 1\n".encode()
            )
        await cache.put_field(STATS_KEY, "garbled", b"{")
        await running.stores.projects.add(
            Project(id="shop", static_admin=ProjectStaticUser(username="u", password_hash="hashed"))
        )
        kinds = ("ECS", "ECS", "LAMBDA")
        book = [{"id": "x", "labels": None, "kind": kind, "status": "ENABLED"} for kind in kinds]
        content = json.dumps({"applications": book, "updated_at": 1}).encode()
        await running.stores.files.put(applications_path("shop"), content)
        text = (await http.get("/metrics")).text
        assert '\nup_a{pipecd_component="piped",piped="a",project=""} 1.0\n' in text
        assert "silent" not in text
        labels = 'app_kind="ECS",pipecd_component="ops",project="shop"'
        assert f"insight_application_total{{{labels}}} 2.0" in text
        assert "process_resident_memory_bytes" in text
        # A damaged file does not break the other metrics.
        await running.stores.files.put(applications_path("shop"), b"{")
        text = (await http.get("/metrics")).text
        assert "up_a" in text
        assert "ECS" not in text


class UnavailableProjects:
    """A table of projects on an unavailable database."""

    async def list(self) -> Any:
        raise Unavailable("the database is unavailable")


async def test_metrics_from_an_unavailable_store_are_missing_without_an_error(
    settings: OpsSettings,
) -> None:
    async with operations(settings) as running:
        stores = replace(running.stores, projects=cast("Any", UnavailableProjects()))
        assert await InstallationMetrics(stores).page() == b""


async def test_metrics_can_be_disabled(spec: ControlPlaneSpec) -> None:
    without_metrics = OpsSettings(spec, "127.0.0.1", 0, "127.0.0.1", 0, metrics=False)
    async with operations(without_metrics) as running, admin_port(running) as http:
        assert (await http.get("/metrics")).text == ""


async def test_ops_runs_the_jobs(settings: OpsSettings) -> None:
    async with operations(settings) as running, admin_port(running) as http, asyncio.timeout(10):
        runs = 'pipecd_job_runs_total{job="insight-deployments",pipecd_component="ops",result="success"}'
        while runs not in (await http.get("/metrics")).text:
            pass
        assert await running.stores.files.get("insights/milestone.json")


async def test_ops_rejects_a_sqlite_file_that_a_server_uses(
    start_plane: StartControlPlane, settings: OpsSettings
) -> None:
    async with start_plane():
        with pytest.raises(
            UserMistake, match=r"in use by process \d+.*runs the background jobs itself"
        ):
            async with operations(settings):
                pass
    # Without the server it works on the same stores.
    async with operations(settings) as running:
        assert [project.id for project in await running.stores.projects.list()] == ["demo"]


async def test_a_server_runs_the_jobs_only_with_ops_enabled(
    start_plane: StartControlPlane,
) -> None:
    async with start_plane(with_ops=False) as plane:
        assert await plane.running.stores.leases.acquire("chains", "another", seconds=1)
        with pytest.raises(NotFound):
            await plane.running.stores.files.get("insights/milestone.json")
    async with start_plane() as plane, asyncio.timeout(10):
        while await plane.running.stores.leases.acquire("chains", "another", seconds=0):
            pass


def test_the_operator_pages_listen_on_loopback_by_default() -> None:
    hosts = {parameter.name: parameter.default for parameter in ops.params}
    assert hosts["host"] == "127.0.0.1"


async def test_the_command_runs_until_sigterm(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(directory=tmp_path))
    port, admin = free_port(), free_port()
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pipecd", "ops", f"--config-file={config}"),
        *(f"--http-port={port}", f"--admin-port={admin}", "--cache-address=cache:6379"),
        *("--gcloud-path=", "--grace-period=1s", "--log-encoding=json"),
        env=os.environ | {"PYTHONWARNINGS": "error"},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(30):
            assert program.stderr is not None
            while b"ops ready" not in (line := await program.stderr.readline()):
                assert line, "the program ended too soon"
        async with httpx2.AsyncClient() as http:
            added = await http.post(f"http://localhost:{port}/projects/add", data={"ID": "shop"})
            assert added.status_code == 200
            assert (await http.get(f"http://127.0.0.1:{admin}/healthz")).text == "ok"
        program.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
