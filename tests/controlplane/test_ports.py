# SPDX-License-Identifier: Apache-2.0
"""Every port of a control plane serves what gateways, probes and tools need."""

import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2 as reflection

from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import Ports, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.proto.gateway.authz_pb2 import CheckRequest, CheckResponse
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger
from pipecd.proto.service import piped_pb2, web_pb2
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.wire.channel import open_channel
from pipecd.wire.credentials import piped_token
from pipecd.wire.server import TlsFiles
from servers.control_plane import ServedControlPlane, StartControlPlane
from servers.server import free_ports

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
PIPED = "grpc.service.pipedservice.PipedService"
WEB = "grpc.service.webservice.WebService"
API = "grpc.service.apiservice.APIService"
AUTHZ = "envoy.service.auth.v3.Authorization"


@pytest.fixture
def ports() -> Ports:
    """Six free ports."""
    return Ports(*free_ports(6))


def grpc_services(plane: ServedControlPlane, ports: Ports) -> dict[str, list[str]]:
    """The gRPC addresses and the services of each."""
    return {
        f"127.0.0.1:{ports.piped_api}": [PIPED],
        f"127.0.0.1:{ports.web_api}": [WEB],
        f"127.0.0.1:{ports.api}": [API],
        f"127.0.0.1:{ports.envoy_authz}": [AUTHZ],
        plane.address: [API, PIPED, WEB],
    }


async def test_every_port_passes_health_checks(
    start_plane: StartControlPlane, ports: Ports
) -> None:
    async with start_plane(ports=ports) as plane, httpx2.AsyncClient() as http:
        for address in (f"127.0.0.1:{ports.http}", plane.address):
            assert (await http.get(f"http://{address}/")).status_code == 200
        admin = f"http://127.0.0.1:{ports.admin}"
        assert (await http.get(f"{admin}/healthz")).text == "ok"
        assert (await http.get(f"{admin}/version")).status_code == 200
        assert (await http.get(f"{admin}/")).status_code == 200
        for address, services in grpc_services(plane, ports).items():
            async with grpc.aio.insecure_channel(address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                for name in ("", *services):
                    response = await stub.Check(health_pb2.HealthCheckRequest(service=name))
                    assert response.status == health_pb2.HealthCheckResponse.SERVING


async def services_at(address: str) -> list[str]:
    async def requests() -> AsyncIterator[reflection.ServerReflectionRequest]:
        yield reflection.ServerReflectionRequest(list_services="")

    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(
            REFLECT,
            request_serializer=reflection.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection.ServerReflectionResponse.FromString,
        )
        (response,) = [response async for response in call(requests())]
    return [service.name for service in response.list_services_response.service]


async def test_every_grpc_port_has_reflection_if_enabled(
    start_plane: StartControlPlane, ports: Ports
) -> None:
    async with start_plane(ports=ports, reflection=True) as plane:
        for address, services in grpc_services(plane, ports).items():
            assert set(services) <= set(await services_at(address))
    async with start_plane(ports=ports) as plane:
        for address in grpc_services(plane, ports):
            async with grpc.aio.insecure_channel(address) as channel:
                # Nothing is sent: a server that refuses at once may end the call before a write.
                call: Any = channel.stream_stream(REFLECT)()
                assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_grpc_web_works_on_both_http_ports(
    start_plane: StartControlPlane, ports: Ports
) -> None:
    body = b"\0" + struct.pack(">I", 0)
    async with start_plane(ports=ports) as plane, httpx2.AsyncClient() as http:
        token = plane.running.cases.sessions.issue(plane.admin)
        headers = {
            "content-type": "application/grpc-web+proto",
            "cookie": f"token={token}",
            "sec-fetch-site": "same-origin",
        }
        for address in (f"127.0.0.1:{ports.http}", plane.address):
            url = f"http://{address}/{WEB}/GetMe"
            response = (await http.post(url, content=body, headers=headers)).content
            (length,) = struct.unpack_from(">I", response, 1)
            me = web_pb2.GetMeResponse.FromString(response[5 : 5 + length])
            assert (me.subject, me.project_id) == ("admin", "demo")
            assert response[5 + length :].endswith(b"grpc-status:0\r\n")


async def test_envoy_checks_requests_and_pipeds_send_traces(
    start_plane: StartControlPlane, ports: Ports
) -> None:
    async with start_plane(ports=ports) as plane:
        made = await plane.running.cases.pipeds.register("p", "", by=plane.admin)
        bearer = f"Bearer demo,{made.id},{made.key}"
        request = CheckRequest()
        request.attributes.request.http.headers["authorization"] = bearer
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.envoy_authz}") as channel:
            check: Any = channel.unary_unary(
                f"/{AUTHZ}/Check", response_deserializer=CheckResponse.FromString
            )
            assert (await check(request.SerializeToString())).status.message == "OK"
        for address in (f"127.0.0.1:{ports.piped_api}", plane.address):
            async with grpc.aio.insecure_channel(address) as channel:
                export: Any = channel.unary_unary(EXPORT)
                assert await export(b"", metadata=(("authorization", bearer),)) == b""


def sample_value(page: str, name: str, *labels: str) -> float:
    """The value of the one sample with all these labels."""
    samples = [
        line
        for line in page.splitlines()
        if line.startswith(f"{name}{{") and all(label in line for label in labels)
    ]
    assert len(samples) == 1, samples
    return float(samples[0].rpartition(" ")[2])


async def make_calls(plane: ServedControlPlane) -> None:
    """Creates a deployment, gets a missing one, and calls without credentials."""
    cases = plane.running.cases
    made = await cases.pipeds.register("p", "", by=plane.admin)
    repository = common.ApplicationGitRepository(id="r", remote="git@x:r.git", branch="main")
    meta = piped_pb2.ReportPipedMetaRequest(version="v1", config="{}", repositories=[repository])
    await cases.pipeds.report_meta(meta, by=PipedCaller("demo", made.id))
    path = common.ApplicationGitPath(repo=common.ApplicationGitRepository(id="r"), path="apps/a")
    draft = Application(name="a", piped_id=made.id, kind=common.KUBERNETES, git_path=path)
    application = await cases.applications.get(
        await cases.applications.add(draft, by=plane.admin), by=plane.admin
    )
    deployment = Deployment(
        id="d1",
        application_id=application.id,
        application_name="a",
        piped_id=made.id,
        project_id="demo",
        git_path=application.git_path,
        trigger=DeploymentTrigger(
            commit=Commit(hash="h", message="m", author="a", branch="main", created_at=1),
            timestamp=1,
        ),
    )
    token = piped_token("demo", made.id, made.key)
    async with open_channel(plane.address, authorization=token, insecure=True) as channel:
        stub = PipedServiceStub(channel)
        await stub.CreateDeployment(piped_pb2.CreateDeploymentRequest(deployment=deployment))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetDeployment(piped_pb2.GetDeploymentRequest(id="nothing"))
    async with open_channel(plane.address, authorization="", insecure=True) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await PipedServiceStub(channel).GetDeployment(
                piped_pb2.GetDeploymentRequest(id="nothing")
            )


async def test_the_admin_port_serves_metrics(start_plane: StartControlPlane, ports: Ports) -> None:
    async with start_plane(ports=ports) as plane, httpx2.AsyncClient() as http:
        await make_calls(plane)
        await http.get(f"http://{plane.address}/login")
        await http.get(f"http://{plane.address}/applications/unknown-id")
        await http.get(f"http://{plane.address}/no/such/page")
        await http.get(f"http://{plane.address}/favicon.ico")
        page = (await http.get(f"http://127.0.0.1:{ports.admin}/metrics")).text
    create, get = (
        'grpc_method="CreateDeployment"',
        f'grpc_method="GetDeployment",grpc_service="{PIPED}"',
    )
    assert sample_value(page, "grpc_server_handled_total", create, 'grpc_code="OK"') == 1
    assert sample_value(page, "grpc_server_handled_total", get, 'grpc_code="NotFound"') == 1
    # Rejected requests do not reach the method and do not trigger the alert.
    assert sample_value(page, "grpc_server_started_total", get) == 1
    assert sample_value(page, "grpc_server_started_total", 'grpc_method="Encrypt"') == 0
    assert sample_value(page, "grpcapi_create_deployment_total", 'project="demo"') == 1
    assert sample_value(page, "http_requests_total", 'code="200"', 'path="/login"') == 1
    assert sample_value(page, "http_requests_total", 'code="303"', 'path="/applications/{id}"') == 1
    assert sample_value(page, "http_requests_total", 'code="404"', 'path="/"') == 1
    assert sample_value(page, "cache_get_operation_total", 'status="miss"', 'source="inmemory"') > 0
    assert "favicon" not in page
    assert "unknown-id" not in page


async def test_without_metrics_the_page_is_empty(
    start_plane: StartControlPlane, ports: Ports
) -> None:
    async with start_plane(ports=ports, metrics=False), httpx2.AsyncClient() as http:
        response = await http.get(f"http://127.0.0.1:{ports.admin}/metrics")
    assert (response.status_code, response.text) == (200, "")


async def test_the_gateway_port_uses_tls(
    start_plane: StartControlPlane, ports: Ports, certificate: tuple[str, str]
) -> None:
    cert_file, key_file = certificate
    async with start_plane(ports=ports, tls=TlsFiles(cert_file, key_file)):
        address = f"127.0.0.1:{ports.envoy_authz}"
        async with open_channel(
            address, authorization="", insecure=False, cert_file=cert_file
        ) as channel:
            check: Any = channel.unary_unary(
                f"/{AUTHZ}/Check", response_deserializer=CheckResponse.FromString
            )
            assert (await check(b"")).status.message == "missing authorization header"


CONFIG = """
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: https://cd.example/
  stateKey: secret
  datastore: {{type: SQLITE, config: {{path: {directory}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}/files}}}}
  sharedSSOConfigs:
    - name: everyone
      provider: GITHUB
      session_ttl: 3
      github: {{clientId: the-client, client_secret: the-secret, baseUrl: "https://ghe.example"}}
"""


async def test_a_shared_sso_config_is_offered_for_sign_in(tmp_path: Path) -> None:
    spec = read_control_plane(CONFIG.format(directory=tmp_path), file="cp.yaml")
    settings = ServerSettings(spec, b"k" * 32, host="127.0.0.1", port=0, insecure_cookie=True)
    async with control_plane(settings) as plane:
        await plane.cases.projects.add("demo", shared_sso="everyone")
        site = f"http://127.0.0.1:{plane.port}"
        async with httpx2.AsyncClient(base_url=site) as http:
            page = (await http.get("/login?project=demo")).text
            response = await http.post("/auth/login", data={"project": "demo"})
    assert "Sign in with GitHub" in page
    assert response.status_code == 302
    url = httpx2.URL(response.headers["location"])
    assert (url.host, url.path) == ("ghe.example", "/login/oauth/authorize")
    assert url.params["client_id"] == "the-client"
    assert url.params["redirect_uri"] == "https://cd.example/auth/callback?project=demo"


async def test_static_dir_replaces_the_console(
    start_plane: StartControlPlane, tmp_path: Path
) -> None:
    site = tmp_path / "static"
    (site / "assets").mkdir(parents=True)
    (site / "index.html").write_text("<title>another console</title>")
    (site / "favicon.ico").write_bytes(b"icon")
    (site / "assets" / "app.1a2b.js").write_text("run()")
    async with (
        start_plane(static_dir=site) as plane,
        httpx2.AsyncClient(base_url=f"http://{plane.address}") as http,
    ):
        for path in ("/", "/applications/1", "/login"):
            assert "another console" in (await http.get(path)).text
        script = await http.get("/assets/app.1a2b.js")
        assert (script.text, script.headers["cache-control"]) == (
            "run()",
            "public, max-age=31536000",
        )
        assert (await http.get("/favicon.ico")).content == b"icon"
        assert (await http.get("/assets/%2e%2e/%2e%2e/pipecd.db")).status_code == 404
        form = {"project": "demo", "username": "admin", "password": plane.password}
        assert (await http.post("/auth/login/static", data=form)).status_code == 302
        call = await http.post(
            f"/{WEB}/GetMe",
            content=b"\0" + struct.pack(">I", 0),
            headers={
                "content-type": "application/grpc-web+proto",
                "sec-fetch-site": "same-origin",
            },
        )
    assert b"admin" in call.content
    assert b"grpc-status:0" in call.content
