# SPDX-License-Identifier: Apache-2.0
"""A whole control plane starts, serves its ports, and stops."""

import socket
import ssl
from typing import Any

import grpc
import httpx2
import pytest

from pipecd.controlplane.app import Ports
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.model.errors import UserMistake
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from pipecd.wire.server import TlsFiles
from servers.control_plane import StartControlPlane
from servers.server import free_ports


async def applications(address: str, key: str, **how: Any) -> list[str]:
    how = how or {"insecure": True}
    async with open_channel(address, authorization=credentials.api_key(key), **how) as channel:
        listed = await APIServiceStub(channel).ListApplications(pb.ListApplicationsRequest())
        return [application.name for application in listed.applications]


async def test_the_shared_port_serves_the_console_and_grpc(start_plane: StartControlPlane) -> None:
    async with start_plane() as plane, httpx2.AsyncClient() as http:
        page = await http.get(f"http://{plane.address}/login")
        assert page.status_code == 200
        assert "PipeCD" in page.text
        assert await applications(plane.address, plane.api_key) == []


async def test_an_unknown_api_key_is_rejected(start_plane: StartControlPlane) -> None:
    async with start_plane() as plane:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await applications(plane.address, plane.api_key[:-1] + "!")
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_separate_ports_serve_too(start_plane: StartControlPlane) -> None:
    free = free_ports(6)
    async with start_plane(ports=Ports(*free)) as plane, httpx2.AsyncClient() as http:
        assert (await http.get(f"http://127.0.0.1:{free[2]}/login")).status_code == 200
        assert (await http.get(f"http://127.0.0.1:{free[4]}/healthz")).text == "ok"
        assert await applications(f"127.0.0.1:{free[3]}", plane.api_key) == []


async def test_metrics_that_pipeds_report_are_served_without_ops(
    start_plane: StartControlPlane,
) -> None:
    free = free_ports(6)
    async with start_plane(ports=Ports(*free)) as plane, httpx2.AsyncClient() as http:
        cases, admin = plane.running.cases, plane.admin
        registered = await cases.pipeds.register("dev", "", by=admin)
        piped = PipedCaller(admin.project, registered.id)
        await cases.pipeds.report_stat(b"piped_plugin_failures 1\n", by=piped)
        page = f"http://127.0.0.1:{free[4]}/metrics"
        labels = f'pipecd_component="piped",piped="{registered.id}",project="{admin.project}"'
        line = f"piped_plugin_failures{{{labels}}} 1.0"
        assert line in (await http.get(f"{page}/pipeds")).text
        # Every replica has the same, so they are not among the metrics of the server.
        assert line not in (await http.get(page)).text


async def test_the_shared_port_serves_both_over_tls(
    start_plane: StartControlPlane, certificate: tuple[str, str]
) -> None:
    cert_file, key_file = certificate
    trusted = ssl.create_default_context(cafile=cert_file)
    async with start_plane(tls=TlsFiles(cert_file, key_file)) as plane:
        async with httpx2.AsyncClient(verify=trusted) as http:
            assert (await http.get(f"https://{plane.address}/login")).status_code == 200
        how = {"insecure": False, "cert_file": cert_file}
        assert await applications(plane.address, plane.api_key, **how) == []


async def test_data_survives_a_restart(start_plane: StartControlPlane) -> None:
    async with start_plane() as plane:
        first = plane.api_key
    async with start_plane() as plane:
        assert await applications(plane.address, first) == []


async def test_the_error_of_a_busy_port_names_it(start_plane: StartControlPlane) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserMistake, match=f"port {port}"):
            async with start_plane(port=port):
                pass
