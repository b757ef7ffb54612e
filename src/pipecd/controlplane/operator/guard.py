# SPDX-License-Identifier: Apache-2.0
"""Keeps other sites away from pages that ask for no password.

The pages are reached by whoever can reach the port, for example a browser on the same machine. A
page of another site in that browser must not be able to use them: not by sending a form, and not by
giving its own name the address of this machine.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipecd.controlplane.auth.http_headers import NO_STORE_HEADERS, PAGE_HEADERS
from pipecd.controlplane.auth.request_origin import is_cross_site

LARGEST_FORM = 64 * 1024
POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_SAID = {**PAGE_HEADERS, **NO_STORE_HEADERS, "Content-Security-Policy": POLICY}
# Names that nobody can register: those of a machine, of a cluster and of a private network.
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".svc", ".cluster.local", ".home.arpa")


class Guard:
    """Refuses requests of other sites and says with every answer what a browser may do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_SAID)
            await send(message)

        refusal = refusal_of(scope["method"], Headers(scope=scope))
        app = PlainTextResponse(refusal, 403) if refusal else self._app
        await app(scope, receive, dressed)


def refusal_of(method: str, headers: Headers) -> str:
    """Why a request is refused; empty when it is not."""
    if not is_private(headers.get("Host", "")):
        return "open this page by the address or the name of the machine, or by a port-forward\n"
    if method in ("GET", "HEAD"):
        return ""
    if is_cross_site(headers):
        return "this form comes from another site; open the page here and send it again\n"
    length = headers.get("Content-Length", "")
    if not (length.isascii() and length.isdigit()) or int(length) > LARGEST_FORM:
        return "this form is too large or does not say how large it is\n"
    return ""


def is_private(host: str) -> bool:
    """Whether a name cannot belong to another site."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if "." not in name:
        # This is a name without a domain or an address of IPv6.
        return bool(name)
    try:
        ip_address(name)
    except ValueError:
        return name.endswith(_PRIVATE_ENDINGS)
    return True
