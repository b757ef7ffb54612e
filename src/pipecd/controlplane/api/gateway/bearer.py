# SPDX-License-Identifier: Apache-2.0
"""A piped that presents its token as a bearer, as exporters of traces do."""

from pipecd.controlplane.auth.credentials import Credentials
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.model.errors import Denied, Unauthenticated
from pipecd.wire.credentials import PipedToken

_SCHEME = "Bearer "


async def piped_of(header: str | None, credentials: Credentials) -> PipedCaller:
    """The piped of an `authorization` header; only a missing one is called unauthenticated."""
    if not header:
        raise Unauthenticated("missing authorization header")
    if not header.startswith(_SCHEME):
        raise Denied("invalid authorization header")
    parts = header.removeprefix(_SCHEME).strip().split(",")
    if len(parts) != 3 or not all(parts):
        raise Denied("malformed piped token")
    try:
        return await credentials.piped(PipedToken(*parts))
    except Unauthenticated as e:
        raise Denied(e.message) from e
