# SPDX-License-Identifier: Apache-2.0
"""WebService by gRPC-Web over plain HTTP, as a browser calls it."""

import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from google.protobuf.message import Message
from starlette.responses import PlainTextResponse

from pipecd.controlplane.api.grpc_web import GrpcWeb
from pipecd.controlplane.api.web_service import web_table
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.web import PathPrefixRouter, WebServer, http_server
from pipecd.proto.service import web_pb2 as pb
from servers.varint import varint

SERVICE = "/grpc.service.webservice.WebService/"
HEADERS = {
    "content-type": "application/grpc-web+proto",
    "x-grpc-web": "1",
    "x-user-agent": "grpc-web-javascript/0.1",
}
Post = Callable[..., Any]


@pytest.fixture
async def site(cases: UseCases) -> AsyncIterator[str]:
    """A web server with gRPC-Web and pages."""
    grpc_web = GrpcWeb(web_table(cases))
    pages = PlainTextResponse("a page")
    web = WebServer(PathPrefixRouter(dict.fromkeys(grpc_web.prefixes(), grpc_web), pages))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"
        await web.stop()


@pytest.fixture
async def post(site: str, cases: UseCases, admin: User) -> AsyncIterator[Post]:
    """Sends a body to an RPC with the session of the admin."""
    cookie = f"theme=dark; token={cases.sessions.issue(admin)}"
    async with httpx2.AsyncClient(base_url=site) as client:

        async def sent(path: str, body: bytes, **headers: str) -> httpx2.Response:
            extra = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.post(
                path, content=body, headers={**HEADERS, "cookie": cookie, **extra}
            )

        yield sent


def framed(message: Message) -> bytes:
    body = message.SerializeToString()
    return b"\0" + struct.pack(">I", len(body)) + body


def unframed(body: bytes) -> tuple[list[bytes], dict[str, str]]:
    """The messages and trailers of a response."""
    messages: list[bytes] = []
    while body:
        flag, length = struct.unpack_from(">BI", body)
        payload, body = body[5 : 5 + length], body[5 + length :]
        if flag == 0x80:
            assert not body, "trailers come last"
            lines = [line.partition(":") for line in payload.decode().split("\r\n") if line]
            return messages, {name: value for name, _, value in lines}
        assert flag == 0
        messages.append(payload)
    pytest.fail("the answer has no trailers")


def status(answer: httpx2.Response) -> tuple[str, str]:
    """The status code and message of a failed call."""
    assert (answer.status_code, answer.headers["content-type"]) == (200, HEADERS["content-type"])
    messages, trailers = unframed(answer.content)
    assert messages == []
    return trailers["grpc-status"], trailers.get("grpc-message", "")


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param(SERVICE, id="the name of the service"),
        pytest.param("/pipe.api.service.webservice.WebService/", id="its former name"),
    ],
)
async def test_a_call_is_answered_under(post: Post, admin: User, prefix: str) -> None:
    answer = await post(f"{prefix}GetMe", framed(pb.GetMeRequest()))
    assert (answer.status_code, answer.headers["content-type"]) == (200, HEADERS["content-type"])
    assert answer.headers["cache-control"] == "no-store"
    (message,), trailers = unframed(answer.content)
    assert pb.GetMeResponse.FromString(message).subject == admin.name
    assert trailers == {"grpc-status": "0"}


async def test_a_call_sees_the_changes_of_the_previous_one(post: Post) -> None:
    registered = await post(
        f"{SERVICE}RegisterPiped", framed(pb.RegisterPipedRequest(name="edge", desc="d"))
    )
    (message,), _ = unframed(registered.content)
    made = pb.RegisterPipedResponse.FromString(message)
    answer = await post(f"{SERVICE}GetPiped", framed(pb.GetPipedRequest(piped_id=made.id)))
    (message,), _ = unframed(answer.content)
    assert pb.GetPipedResponse.FromString(message).piped.name == "edge"


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        pytest.param(
            "GetPiped",
            pb.GetPipedRequest(piped_id="x"),
            ("5", "Piped is not found"),
            id="an unknown piped",
        ),
        pytest.param(
            "GetPiped",
            pb.GetPipedRequest(),
            (
                "3",
                "invalid request: invalid GetPipedRequest.PipedId: "
                "value length must be at least 1 runes",
            ),
            id="an invalid request",
        ),
        pytest.param(
            "Nothing",
            pb.GetPipedRequest(),
            ("12", f"{SERVICE}Nothing is not a method of {SERVICE[1:-1]}"),
            id="an unknown method",
        ),
    ],
)
async def test_an_error_is_reported_in_the_trailers(
    post: Post, method: str, request_: Message, expected: tuple[str, str]
) -> None:
    assert status(await post(f"{SERVICE}{method}", framed(request_))) == expected


async def test_a_message_that_is_not_ascii_is_escaped(post: Post) -> None:
    request = pb.GetProjectRequest()
    answer = await post(f"{SERVICE}GetProject/ö", framed(request))
    assert status(answer)[0] == "12"
    assert "%C3%B6" in status(answer)[1]


@pytest.mark.parametrize(
    "cookie",
    [
        pytest.param("", id="no cookie"),
        pytest.param("token", id="a cookie without a value"),
        pytest.param("token=a.b.c", id="a forged session"),
    ],
)
async def test_a_call_without_a_session_is_refused_with(post: Post, cookie: str) -> None:
    answer = await post(f"{SERVICE}GetMe", framed(pb.GetMeRequest()), cookie=cookie)
    assert status(answer) == ("16", "Unauthenticated")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"sec_fetch_site": "cross-site"}, id="another site"),
        pytest.param({"sec_fetch_site": "same-site"}, id="another origin of the same site"),
        pytest.param({"origin": "https://evil.example"}, id="another origin in an older browser"),
    ],
)
async def test_a_cross_site_call_is_refused_from(
    post: Post, cases: UseCases, admin: User, headers: dict[str, str]
) -> None:
    body = framed(pb.RegisterPipedRequest(name="theirs", desc="d"))
    assert status(await post(f"{SERVICE}RegisterPiped", body, **headers))[0] == "7"
    assert await cases.pipeds.list(by=admin) == ()


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"sec_fetch_site": "same-origin"}, id="a current browser"),
        pytest.param({"origin": "same"}, id="an older browser"),
    ],
)
async def test_a_same_origin_call_is_accepted_from(
    post: Post, site: str, headers: dict[str, str]
) -> None:
    sent = {name: site if value == "same" else value for name, value in headers.items()}
    answer = await post(f"{SERVICE}GetMe", framed(pb.GetMeRequest()), **sent)
    assert unframed(answer.content)[1] == {"grpc-status": "0"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\0\0\0\x09cut", id="a truncated frame"),
        pytest.param(b"\x01\0\0\0\0", id="a compressed frame"),
        pytest.param(b"\0\0\0\0\x02\xff\xff", id="not a message"),
    ],
)
async def test_a_body_is_refused_if_it_is(post: Post, body: bytes) -> None:
    assert status(await post(f"{SERVICE}GetPiped", body))[0] == "3"


async def test_only_a_message_over_the_size_limit_is_refused(
    post: Post,
) -> None:
    limit = 4 * 1024 * 1024
    # An unknown field is skipped, so only the size matters.
    filler = b"\xfa\x7f" + varint(limit - 6) + b"x" * (limit - 6)
    assert len(filler) == limit
    body = b"\0" + struct.pack(">I", limit) + filler
    assert unframed((await post(f"{SERVICE}GetMe", body)).content)[1] == {"grpc-status": "0"}
    assert status(await post(f"{SERVICE}GetMe", body + b"x"))[0] == "8"


async def test_a_long_body_without_a_length_is_refused(
    site: str, cases: UseCases, admin: User
) -> None:
    """Less than 1 MiB above the limit, after which the connection is closed."""

    async def long_body() -> AsyncIterator[bytes]:
        for _ in range(47):
            yield b"x" * 100_000

    async with httpx2.AsyncClient(base_url=site) as client:
        headers = {**HEADERS, "cookie": f"token={cases.sessions.issue(admin)}"}
        answer = await client.post(f"{SERVICE}GetMe", content=long_body(), headers=headers)
    assert status(answer)[0] == "8"


async def test_only_grpc_web_calls_are_accepted(site: str, post: Post) -> None:
    async with httpx2.AsyncClient(base_url=site) as client:
        assert (await client.get(f"{SERVICE}GetMe")).status_code == 405
        assert (await client.get("/anything")).text == "a page"
    for kind in ("application/json", "application/grpc-web-text", "text/plain"):
        answer = await post(f"{SERVICE}GetMe", b"\0\0\0\0\0", content_type=kind)
        assert answer.status_code == 415
