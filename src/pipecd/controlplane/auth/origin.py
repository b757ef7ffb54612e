# SPDX-License-Identifier: Apache-2.0
"""Whether a page of another site made a browser send a request with somebody's cookie."""

from collections.abc import Mapping
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Reads what browsers say about where a request comes from; names are in lower case.

    Programs say nothing and bring no cookie of anybody unless they own it.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        # Unlike `Origin`, this is told by the browser for the address that it sees itself, so a
        # proxy that changes `Host` does no harm.
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    # A page of another site cannot add the second one without being asked for permission first.
    here = (headers.get(name, "") for name in ("host", "x-forwarded-host"))
    return not any(_is_here(origin, host) for host in here)


def _is_here(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
        here = urlsplit(f"//{host}")
        usual = _DEFAULT_PORTS.get(parts.scheme)
        theirs, ours = parts.port or usual, here.port or usual
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.hostname, theirs) == (here.hostname, ours)
