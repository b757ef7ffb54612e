# SPDX-License-Identifier: Apache-2.0
"""A real Envoy in front, with the routes of upstream's gateway."""

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import httpx2
import pytest

from pipecd.controlplane.app import Ports
from pipecd.proto.service import api_pb2, web_pb2
from pipecd.wire.credentials import api_key
from pipecd.wire.server import grpc_server
from servers.control_plane import StartControlPlane
from servers.envoy import Envoy
from servers.fixtures import running
from servers.server import free_port

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
FILTERS = "type.googleapis.com/envoy.extensions.filters"
AUTHZ = "envoy.filters.http.ext_authz"
SERVICES = {
    "piped": "pipedservice.PipedService",
    "web": "webservice.WebService",
    "api": "apiservice.APIService",
}


def cluster(name: str, port: int, *, http2: bool) -> dict[str, Any]:
    endpoint = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}
    protocol = "http2_protocol_options" if http2 else "http_protocol_options"
    options = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {protocol: {}},
            }
        },
    }


def routes() -> list[dict[str, Any]]:
    unguarded = {
        AUTHZ: {"@type": f"{FILTERS}.http.ext_authz.v3.ExtAuthzPerRoute", "disabled": True}
    }
    found: list[dict[str, Any]] = []
    for name, service in SERVICES.items():
        current = f"/grpc.service.{service}/"
        for prefix in (current, f"/pipe.api.service.{service}/"):
            to = {"cluster": name, "prefix_rewrite": current}
            # Upstream's file says `grpc:` with nothing behind it, which Envoy reads as left out.
            match = {"prefix": prefix, "grpc": None}
            found.append({"match": match, "route": to, "typed_per_filter_config": unguarded})
    traces = {"prefix": EXPORT.rpartition("/")[0] + "/", "grpc": None}
    found.append({"match": traces, "route": {"cluster": "collector"}})
    pages = {"match": {"prefix": "/"}, "route": {"cluster": "pages"}}
    return [*found, {**pages, "typed_per_filter_config": unguarded}]


def filters() -> list[dict[str, Any]]:
    authz = {
        "@type": f"{FILTERS}.http.ext_authz.v3.ExtAuthz",
        "grpc_service": {"envoy_grpc": {"cluster_name": "authz"}, "timeout": "10s"},
        "transport_api_version": "V3",
    }
    web = {"@type": f"{FILTERS}.http.grpc_web.v3.GrpcWeb"}
    router = {"@type": f"{FILTERS}.http.router.v3.Router"}
    return [
        {"name": AUTHZ, "typed_config": authz},
        {"name": "envoy.filters.http.grpc_web", "typed_config": web},
        {"name": "envoy.filters.http.router", "typed_config": router},
    ]


def configuration(port: int, ports: Ports, collector: int) -> dict[str, Any]:
    connections = {
        "@type": f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "codec_type": "AUTO",
        "stat_prefix": "ingress",
        "http_filters": filters(),
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes()}]},
    }
    chain = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": connections}
        ]
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    clusters = [
        cluster("piped", ports.piped_api, http2=True),
        cluster("web", ports.web_api, http2=True),
        cluster("api", ports.api, http2=True),
        cluster("authz", ports.envoy_authz, http2=True),
        cluster("collector", collector, http2=True),
        cluster("pages", ports.http, http2=False),
    ]
    listener = {"name": "ingress", "address": address, "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


@dataclass
class OtherCollector(grpc.GenericRpcHandler):
    """A trace collector that stores the spans it receives."""

    got: list[bytes] = field(default_factory=list[bytes])

    def service(self, handler_call_details: Any) -> Any:
        serve: Any = self._serve
        return grpc.unary_unary_rpc_method_handler(serve)

    async def _serve(self, request: bytes, context: Any) -> bytes:
        self.got.append(request)
        return b""


@dataclass
class Gateway:
    """The whole layout: a control plane on separate ports behind Envoy, and a collector."""

    plane: Any
    address: str
    collector: OtherCollector


@pytest.fixture
async def gateway(start_plane: StartControlPlane) -> AsyncIterator[Gateway]:
    ports, collector = Ports(*(free_port() for _ in range(6))), OtherCollector()
    async with (
        start_plane(ports=ports) as plane,
        grpc_server([collector], host="127.0.0.1", port=0, grace=0) as collecting,
    ):
        for envoy in running(lambda: Envoy(lambda port: configuration(port, ports, collecting))):
            yield Gateway(plane, f"127.0.0.1:{envoy.port}", collector)


async def test_pages_are_reached_signed_out(gateway: Gateway) -> None:
    async with httpx2.AsyncClient() as http:
        page = await http.get(f"http://{gateway.address}/")
    assert page.status_code == 200
    assert "PipeCD" in page.text


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param("grpc.service.", id="the name of the service"),
        pytest.param("pipe.api.service.", id="its former name"),
    ],
)
async def test_programs_call_under(gateway: Gateway, prefix: str) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        call: Any = channel.unary_unary(
            f"/{prefix}apiservice.APIService/ListApplications",
            request_serializer=api_pb2.ListApplicationsRequest.SerializeToString,
            response_deserializer=api_pb2.ListApplicationsResponse.FromString,
        )
        metadata = (("authorization", api_key(gateway.plane.api_key)),)
        answer = await call(api_pb2.ListApplicationsRequest(), metadata=metadata)
    assert list(answer.applications) == []


async def test_browsers_call_by_grpc_web(gateway: Gateway) -> None:
    token = gateway.plane.running.cases.sessions.issue(gateway.plane.admin)
    headers = {"content-type": "application/grpc-web+proto", "cookie": f"token={token}"}
    url = f"http://{gateway.address}/grpc.service.webservice.WebService/GetMe"
    async with httpx2.AsyncClient() as http:
        reply = await http.post(url, content=b"\0\0\0\0\0", headers=headers)
    assert reply.status_code == 200, reply.headers
    answer = reply.content
    (length,) = struct.unpack_from(">I", answer, 1)
    assert web_pb2.GetMeResponse.FromString(answer[5 : 5 + length]).project_id == "demo"
    assert b"grpc-status:0" in answer[5 + length :]


async def test_traces_pass_with_the_key_of_a_piped_only(gateway: Gateway) -> None:
    made = await gateway.plane.running.cases.pipeds.register("p", "", by=gateway.plane.admin)
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        export: Any = channel.unary_unary(EXPORT)

        async def sent(body: bytes, *metadata: tuple[str, str]) -> grpc.StatusCode:
            try:
                await export(body, metadata=metadata)
            except grpc.aio.AioRpcError as e:
                return e.code()
            return grpc.StatusCode.OK

        good = ("authorization", f"Bearer demo,{made.id},{made.key}")
        assert await sent(b"good", good) is grpc.StatusCode.OK
        bad = ("authorization", f"Bearer demo,{made.id},wrong")
        assert await sent(b"bad", bad) is grpc.StatusCode.PERMISSION_DENIED
        assert await sent(b"none") is grpc.StatusCode.PERMISSION_DENIED
    assert gateway.collector.got == [b"good"]
