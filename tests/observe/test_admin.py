# SPDX-License-Identifier: Apache-2.0
"""The admin port serves status pages, metrics and probes."""

import httpx2
import pytest
from prometheus_client import CollectorRegistry, Counter

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.observe.admin import Page, admin_server, standard_pages


async def test_the_pages_are_served_and_listed() -> None:
    registry = CollectorRegistry()
    Counter("pushes", "Pushes seen.", registry=registry).inc()
    async with (
        admin_server(standard_pages(registry), host="127.0.0.1", port=0) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        assert (await http.get("/healthz")).text == "ok"
        assert (await http.get("/version")).text.startswith("v")
        assert "pushes_total 1.0" in (await http.get("/metrics")).text
        assert "/healthz" in (await http.get("/anything")).text
        assert (await http.post("/healthz")).status_code == 405


async def test_without_a_registry_the_metrics_are_empty() -> None:
    async with (
        admin_server(standard_pages(None), host="127.0.0.1", port=0) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        assert (await http.get("/metrics")).text == ""


async def test_a_busy_port_is_reported() -> None:
    async with admin_server({}, host="127.0.0.1", port=0) as port:
        with pytest.raises(UserMistake, match=f"{port}.*--admin-port"):
            async with admin_server({}, host="127.0.0.1", port=port):
                pass


async def test_a_program_without_its_datastore_is_healthy_but_not_ready() -> None:
    async def ready() -> bytes:
        raise Unavailable("datastore: away")

    async with (
        admin_server(standard_pages(None, ready), host="127.0.0.1", port=0) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        assert (await http.get("/healthz")).status_code == 200
        response = await http.get("/readyz")
        assert (response.status_code, response.text) == (503, "datastore: away\n")


async def test_a_page_may_ask_others_before_it_answers() -> None:
    async def figures() -> bytes:
        return b"up 1\n"

    async def away() -> bytes:
        raise Unavailable("the store is away")

    pages = {"/figures": Page(figures), "/away": Page(away)}
    async with (
        admin_server(pages, host="127.0.0.1", port=0) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        assert (await http.get("/figures")).text == "up 1\n"
        refused = await http.get("/away")
        assert (refused.status_code, refused.text) == (503, "the store is away\n")
