# SPDX-License-Identifier: Apache-2.0
"""The Compose files, without a container engine: their commands and files work as processes.

tests/tools/test_images.py runs the first of them with Docker.
"""

import base64
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pymysql
import pytest
import yaml

from pipecd.observe.telemetry import OTLP_EXPORT_METHOD
from servers.databases import MariaDb, Redis
from servers.envoy import Envoy
from servers.fixtures import running
from servers.layout import (
    Container,
    Pipectl,
    create_bucket,
    first_key,
    programs_on_loopback,
    until_ready,
)
from servers.objects import S3
from servers.polling import eventually
from servers.server import free_port

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def service(file: Path, name: str) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())["services"][name]


def filled(text: str, values: dict[str, str]) -> str:
    """The text with variables replaced as Compose does it."""
    text = re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda m: values.get(m[1], m[2] or ""), text)
    return text.replace("$$", "$")


def words_of(settings: dict[str, Any], values: dict[str, str]) -> list[str]:
    words = [*settings.get("entrypoint", []), *settings["command"]]
    return [filled(word, values) for word in words]


async def test_all_in_one_deploys(tmp_path: Path) -> None:
    file, port = COMPOSE / "compose.yaml", free_port()
    server = service(file, "server")
    assert server["read_only"] is True
    path = {"PATH": programs_on_loopback(tmp_path / "bin", port)}
    values = {"PIPECD_FIRST_PROJECT": "shop", "PIPECD_FIRST_ADMIN_PASSWORD": "hello-shop"}
    environment = {name: filled(text, values) for name, text in server["environment"].items()}
    container = Container(tmp_path / "server")
    config = container.write(
        "/etc/pipecd/control-plane.yaml", (COMPOSE / "control-plane.yaml").read_text()
    )
    async with container.started(words_of(server, {}), {**environment, **path}) as log:
        await until_ready(log)
        pipectl = Pipectl(port, await first_key(config, "shop"))

        @asynccontextmanager
        async def piped(configuration: str) -> AsyncIterator[Path]:
            place, settings = Container(tmp_path / "piped"), service(file, "piped")
            [secret] = settings["secrets"]
            place.write(secret["target"], configuration)
            command = words_of(settings, {})
            async with place.started(["piped", *command], path) as log:
                yield log

        await pipectl.deploy_with(piped, tmp_path)


@pytest.fixture
def password(mariadb: MariaDb) -> Iterator[str]:
    """The password of a user root of MySQL that connects by TCP."""
    with (
        pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("DROP DATABASE IF EXISTS pipecd")
        cursor.execute("CREATE DATABASE pipecd")
        cursor.execute("CREATE OR REPLACE USER compose@'%' IDENTIFIED BY 'a-password'")
        cursor.execute("GRANT ALL ON *.* TO compose@'%'")
    yield "a-password"


async def wrong_passwords_lock_out_their_client_only(url: str) -> None:
    """The server behind the gateway tells its clients apart."""

    async def can_sign_in(address: str, password: str) -> bool:
        transport = httpx2.AsyncHTTPTransport(local_address=address)
        async with httpx2.AsyncClient(transport=transport, base_url=url) as browser:
            form = {"project": "shop", "username": "admin", "password": password}
            # What a client says about itself is not believed.
            forged = {"X-Forwarded-For": "192.0.2.1"}
            answer = await browser.post("/auth/login/static", data=form, headers=forged)
            return "token" in answer.cookies

    for _ in range(11):
        assert not await can_sign_in("127.0.0.2", "wrong")
    assert not await can_sign_in("127.0.0.2", "hello-shop")
    assert await can_sign_in("127.0.0.3", "hello-shop")


async def only_the_health_is_served(url: str, client: httpx2.AsyncClient) -> None:
    """The admin port of the gateway is behind a list of what may be read."""
    paths = ("/ready", "/stats/prometheus", "/quitquitquit", "/config_dump", "/")
    statuses = [(await client.get(url + path)).status_code for path in paths]
    assert statuses == [200, 200, 404, 404, 404]


async def traces_reach_the_server(port: int) -> None:
    """Only the gRPC port for pipeds rejects traces for want of a piped's key."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="missing authorization header"):
            await channel.unary_unary(OTLP_EXPORT_METHOD)(b"")


@pytest.mark.parametrize("file", ["compose.yaml", "components/compose.yaml"])
def test_a_server_is_healthy_when_it_is_ready(file: str) -> None:
    assert service(COMPOSE / file, "server")["healthcheck"]["test"][-1].endswith(":9085/readyz")


async def test_components_work_together_behind_the_gateway(
    mariadb: MariaDb, redis: Redis, aws: S3, password: str, tmp_path: Path
) -> None:
    file = COMPOSE / "components" / "compose.yaml"
    text = (COMPOSE / "components" / "control-plane.yaml").read_text()
    for name, here in {
        "root:change-this-password": f"compose:{password}",
        "mysql:3306": f"127.0.0.1:{mariadb.port}",
        "http://minio:9000": aws.environment["AWS_ENDPOINT_URL"],
    }.items():
        assert name in text
        text = text.replace(name, here)
    create_bucket("pipecd")
    port = free_port()
    programs = tmp_path / "bin"
    path = programs_on_loopback(programs, port)
    health_port = free_port()
    of_server = (programs / "pipecd").read_text().partition("ops)")[0]
    flags: dict[str, Any] = dict(re.findall(r"--([\w-]+)-port=(\d+)", of_server))
    container, ops = Container(tmp_path / "server"), Container(tmp_path / "ops")

    def variables(container: Container) -> dict[str, str]:
        values = {
            "CONTROL_PLANE_CONFIG": base64.b64encode(text.encode()).decode(),
            "ENCRYPTION_KEY": "k" * 64,
            "MINIO_SECRET_KEY": "tests",
            "PIPECD_FIRST_PROJECT": "shop",
            "PIPECD_FIRST_ADMIN_PASSWORD": "hello-shop",
        }
        given = service(file, "server")["environment"]
        here = {"PATH": path, **{name: filled(value, values) for name, value in given.items()}}
        # The address of the gateway on this machine.
        [address] = service(file, "gateway")["networks"]["default"].values()
        assert here["TRUSTED_PROXIES"] == filled(address, {})
        return {**here, "TRUSTED_PROXIES": "127.0.0.1"}

    def command(name: str) -> list[str]:
        words = words_of(service(file, name), {})
        return [word.replace("redis:6379", f"127.0.0.1:{redis.port}") for word in words]

    def gateway(listening: int) -> dict[str, Any]:
        """The configuration of the gateway with the ports of this machine."""
        config = yaml.safe_load((COMPOSE / "components" / "envoy.yaml").read_text())
        admin = config["admin"]["address"]["socket_address"]
        assert admin["address"] == "127.0.0.1"
        admin["port_value"] = flags["admin"] = free_port()
        [health, listener] = config["static_resources"]["listeners"]
        health["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": health_port}
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": listening}
        for cluster in config["static_resources"]["clusters"]:
            [endpoint] = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            address = {
                "address": "127.0.0.1",
                "port_value": int(flags[cluster["name"]]),
            }
            endpoint["endpoint"]["address"]["socket_address"] = address
        return config

    async with (
        container.started(command("server"), variables(container)) as log,
        ops.started(command("ops"), variables(ops)),
    ):
        await until_ready(log)
        key = await first_key(container.home / "control-plane.yaml", "shop")
        for envoy in running(lambda: Envoy(gateway)):
            pipectl, url = Pipectl(envoy.port, key), f"http://127.0.0.1:{envoy.port}/"
            async with httpx2.AsyncClient() as client:

                async def answers(url: str = url, client: httpx2.AsyncClient = client) -> bool:
                    return (await client.get(url, follow_redirects=True)).status_code == 200

                await eventually(answers, within=30)
                await wrong_passwords_lock_out_their_client_only(url)
                await only_the_health_is_served(f"http://127.0.0.1:{health_port}", client)
                await traces_reach_the_server(envoy.port)

            @asynccontextmanager
            async def piped(configuration: str) -> AsyncIterator[Path]:
                place = Container(tmp_path / "piped")
                place.write("/etc/piped/piped.yaml", configuration)
                words = ["piped", "run", "--config-file=/etc/piped/piped.yaml"]
                async with place.started(words, {"PATH": path}) as log:
                    yield log

            await pipectl.deploy_with(piped, tmp_path)
