# SPDX-License-Identifier: Apache-2.0
"""Queries to Google Cloud Monitoring and Logging with a token of a service account."""

import json
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pipecd.plugins.analysis.config import ProviderConfig
from pipecd.plugins.analysis.provider_client import Point, Window
from pipecd.plugins.analysis.stackdriver import StackdriverProvider
from pipecd.sdk import Unavailable, UserMistake
from plugins.analysis.conftest import Serve, form
from servers.web import Request

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
POINTS = {"status": "success", "data": {"result": [{"values": [[5, "0.5"]]}]}}
TOKEN = {"access_token": "tok", "expires_in": 3600}


def google(request: Request) -> tuple[int, Any]:
    """Responds as Google does to requests for tokens, metrics and logs."""
    match request.path:
        case "/token":
            return 200, TOKEN
        case "/computeMetadata/v1/project/project-id":
            return 200, "of-the-machine"
        case "/computeMetadata/v1/instance/service-accounts/default/token":
            return 200, TOKEN
        case "/v2/entries:list":
            entries = [
                {"timestamp": "2026-01-01T00:00:00Z", "severity": "ERROR", "textPayload": "boom"},
                {"jsonPayload": {"message": "bang"}},
                {"protoPayload": {"code": 7}},
            ]
            return 200, {"entries": entries}
        case _:
            return 200, POINTS


def key_file(tmp_path: Path, url: str, **changes: str) -> str:
    path = tmp_path / "account.json"
    key = {
        "project_id": "shop-prod",
        "client_email": "piped@shop-prod.example",
        "private_key": PEM,
        "token_uri": f"{url}/token",
    }
    path.write_text(json.dumps({**key, **changes}))
    return str(path)


async def test_metrics_are_queried_in_promql(
    serve: Serve, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    with serve(google) as server:
        file = key_file(tmp_path, server.address)
        config = ProviderConfig(address=server.address, service_account_file=file)
        provider = StackdriverProvider(client, config)
        assert await provider.points("up", Window(0, 60)) == [Point(5, 0.5)]
        assert await provider.points("up", Window(60, 120)) == [Point(5, 0.5)]
    signing, first, second = server.requests
    assert form(signing)["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    claims = jwt.decode(
        form(signing)["assertion"], KEY.public_key(), ["RS256"], audience=f"{server.address}/token"
    )
    assert claims["iss"] == "piped@shop-prod.example"
    assert first.path == "/v1/projects/shop-prod/location/global/prometheus/api/v1/query_range"
    assert first.headers["authorization"] == "Bearer tok"
    assert second.headers["authorization"] == "Bearer tok", "the token is used again"


async def test_credentials_come_from_the_metadata_server(
    serve: Serve, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with serve(google) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address.removeprefix("http://"))
        provider = StackdriverProvider(client, ProviderConfig(address=server.address))
        assert await provider.points("up", Window(0, 60)) == [Point(5, 0.5)]
    assert server.requests[0].headers["metadata-flavor"] == "Google"
    assert server.requests[-1].path.startswith("/v1/projects/of-the-machine/")


async def test_log_entries_are_returned_as_text(
    serve: Serve, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    with serve(google) as server:
        file = key_file(tmp_path, server.address)
        config = ProviderConfig(address=server.address, service_account_file=file)
        entries = await StackdriverProvider(client, config).entries(
            'severity>=ERROR OR textPayload:"x"', Window(1_700_000_000, 1_700_000_060.5)
        )
    assert entries == ["2026-01-01T00:00:00Z ERROR boom", "bang", '{"code": 7}']
    assert json.loads(server.requests[-1].body) == {
        "resourceNames": ["projects/shop-prod"],
        "filter": 'timestamp>="2023-11-14T22:13:20.000Z" timestamp<"2023-11-14T22:14:20.500Z"'
        ' (severity>=ERROR OR textPayload:"x")',
        "orderBy": "timestamp asc",
        "pageSize": 5,
    }


async def test_a_refused_request_raises_the_reason(
    serve: Serve, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    def refuse(request: Request) -> tuple[int, Any]:
        if request.path == "/token":
            return 200, TOKEN
        return 403, {"error": {"message": "the caller may not", "code": 403}}

    with serve(refuse) as server:
        file = key_file(tmp_path, server.address)
        provider = StackdriverProvider(
            client, ProviderConfig(address=server.address, service_account_file=file)
        )
        with pytest.raises(Unavailable, match="status 403: the caller may not"):
            await provider.entries("", Window(0, 1))
        with pytest.raises(Unavailable, match=r"status 403: .*the caller may not"):
            await provider.points("up", Window(0, 1))


async def test_a_refused_token_raises_the_reason(
    serve: Serve, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
    with serve(lambda _: (400, refusal)) as server:
        file = key_file(tmp_path, server.address)
        provider = StackdriverProvider(client, ProviderConfig(service_account_file=file))
        with pytest.raises(Unavailable, match=r"status 400: Invalid JWT Signature\."):
            await provider.points("up", Window(0, 1))


@pytest.mark.parametrize("content", ["{", "[]", '{"project_id": "x"}'])
def test_a_file_that_is_no_key_is_not_quoted(
    client: httpx2.AsyncClient, tmp_path: Path, content: str
) -> None:
    (tmp_path / "key").write_text(content)
    config = ProviderConfig(service_account_file=str(tmp_path / "key"))
    with pytest.raises(UserMistake, match=r"is not the key of a service account$"):
        StackdriverProvider(client, config)


async def test_an_invalid_private_key_is_refused(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    file = key_file(tmp_path, "http://127.0.0.1:1", private_key="nonsense")
    provider = StackdriverProvider(client, ProviderConfig(service_account_file=file))
    with pytest.raises(UserMistake, match=r"private_key .* cannot be used"):
        await provider.points("up", Window(0, 1))
