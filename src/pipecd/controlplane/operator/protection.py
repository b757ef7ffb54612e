# SPDX-License-Identifier: Apache-2.0
"""Protects pages without a password against other sites.

Everyone who can reach the port can use the pages, for example a browser on the same machine. A page
of another site in that browser must not use them: neither with a cross-site form nor by DNS
rebinding, that is, with a domain name that resolves to this machine.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipecd.controlplane.auth.http_headers import NO_STORE_HEADERS, PAGE_HEADERS
from pipecd.controlplane.auth.request_origin import is_cross_site
from pipecd.model.count import exceeds

MAX_FORM_BYTES = 64 * 1024
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_HEADERS = {**PAGE_HEADERS, **NO_STORE_HEADERS, "Content-Security-Policy": CONTENT_SECURITY_POLICY}
# Domains that cannot be registered: those of a machine, a cluster and a private network.
_PRIVATE_DOMAINS = (".localhost", ".local", ".internal", ".svc", ".cluster.local", ".home.arpa")


class CrossSiteProtection:
    """Rejects requests of other sites and adds security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        reason = rejection_reason(scope["method"], Headers(scope=scope))
        app = PlainTextResponse(reason, 403) if reason else self._app
        await app(scope, receive, send_with_headers)


def rejection_reason(method: str, headers: Headers) -> str:
    """Why a request is rejected; empty if it is accepted."""
    if not is_private(headers.get("Host", "")):
        return "open this page by IP address, by host name or through a port-forward\n"
    if method in ("GET", "HEAD"):
        return ""
    if is_cross_site(headers):
        return "cross-site request; open the page here and submit the form again\n"
    length = headers.get("Content-Length", "")
    if not length or exceeds(length, MAX_FORM_BYTES):
        return "the form is too large or has no Content-Length\n"
    return ""


def is_private(host: str) -> bool:
    """Whether the host of a request cannot belong to another site."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if "." not in name:
        # A host name without a domain, or an IPv6 address.
        return bool(name)
    try:
        ip_address(name)
    except ValueError:
        return name.endswith(_PRIVATE_DOMAINS)
    return True
