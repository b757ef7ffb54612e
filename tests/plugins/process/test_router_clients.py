# SPDX-License-Identifier: Apache-2.0
"""One client cannot take all connections of a listener, and an operator says who is a proxy."""

import asyncio
import json
from contextlib import AsyncExitStack
from ipaddress import ip_network

import pytest

from pipecd.plugins.process import router
from pipecd.plugins.process.router import Limits, RouteProtocol
from pipecd.plugins.process.router_route import client_network
from pipecd.sdk import StageStatus
from plugins.process.router_rig import Rig, Service, routing
from plugins.process.testbed import Service as Deployed
from servers.polling import eventually

STRANGERS = Limits(connections=4, address_connections=2, trusted_proxies=())


async def connect_from(rig: Rig, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    opened = await asyncio.open_connection("127.0.0.1", rig.port, local_addr=(address, 0))
    rig.lifetime.callback(opened[1].close)
    return opened


async def is_served(rig: Rig, address: str) -> bool:
    reader, writer = await connect_from(rig, address)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.read()
    except ConnectionResetError:
        return False
    finally:
        writer.close()


@pytest.mark.parametrize("protocol", RouteProtocol)
async def test_one_address_has_a_part_of_the_connections(protocol: RouteProtocol) -> None:
    async with routing(STRANGERS) as rig:
        backend = await rig.serve(Service())
        rig.port = await rig.router.listen(
            "shop", "127.0.0.1", 0, protocol, variants={"primary": (1, [backend])}
        )
        async with AsyncExitStack() as held:
            for _ in range(2):
                _, writer = await connect_from(rig, "127.0.0.2")
                held.callback(writer.close)
            assert not await is_served(rig, "127.0.0.2")
            assert await is_served(rig, "127.0.0.3")
        await eventually(lambda: is_served(rig, "127.0.0.2"), 10)


@pytest.mark.parametrize("protocol", RouteProtocol)
async def test_the_clients_of_one_listener_leave_connections_to_the_others(
    protocol: RouteProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The files of eight connections.
    monkeypatch.setattr(router.resource, "getrlimit", lambda _: (80, 80))
    async with routing() as rig:
        share = {"primary": (1, [await rig.serve(Service())])}
        crowded = await rig.router.listen("crowded", "127.0.0.1", 0, protocol, variants=share)
        rig.router.route("web", share)
        own, rig.port = rig.port, crowded
        for address in range(2, 22):
            await connect_from(rig, f"127.0.0.{address}")

        def admitted() -> int:
            stats = rig.router.stats("crowded")
            return stats.connections + stats.refused_connections == 20 and stats.connections

        assert await eventually(admitted, 10) == 4
        rig.port = own
        assert await is_served(rig, "127.0.0.99")


async def test_a_proxy_may_have_all_connections() -> None:
    async with routing(Limits(connections=4, address_connections=2)) as rig:
        rig.router.route("web", {"primary": (1, [await rig.serve(Service())])})
        for _ in range(3):
            await connect_from(rig, "127.0.0.2")
        assert await is_served(rig, "127.0.0.2")


async def test_the_router_trusts_other_proxies_from_the_next_connection() -> None:
    async with routing(Limits(trusted_proxies=())) as rig:
        service = Service()
        rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
        request = (
            b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n\r\n"
        )
        await rig.raw(request)
        rig.router.trust((ip_network("127.0.0.1/32"),))
        await rig.raw(request)
    seen = [each.value(b"x-forwarded-for") for each in service.requests]
    assert seen == [b"127.0.0.1", b"192.0.2.7, 127.0.0.1"]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_who_shares_a_part_of_the_connections(address: str, network: str) -> None:
    assert client_network(address) == network


async def test_a_deploy_target_names_its_proxies(service: Deployed) -> None:
    program = (
        "import os\n"
        "from http.server import BaseHTTPRequestHandler, HTTPServer\n"
        "class Handler(BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        body = str(self.headers['X-Forwarded-For']).encode()\n"
        "        self.send_response(200)\n"
        "        self.send_header('Content-Length', str(len(body)))\n"
        "        self.end_headers()\n"
        "        self.wfile.write(body)\n"
        "HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler).serve_forever()\n"
    )
    service.target = {"trustedProxies": ["10.0.0.0/8"]}
    result = await service.commit("one", {"server.py": program}).run("PROCESS_SYNC")
    assert result.status is StageStatus.SUCCESS, result.message

    async def seen() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n\r\n"
        )
        answer = await reader.read()
        writer.close()
        return answer.rpartition(b"\r\n\r\n")[2]

    assert await seen() == b"127.0.0.1"
    stored = json.loads(service.client.directory.state_file.read_text())
    assert stored["trusted_proxies"] == ["10.0.0.0/8"]
    await service.client.configure(0, ["127.0.0.0/8"])
    assert await seen() == b"192.0.2.7, 127.0.0.1"
