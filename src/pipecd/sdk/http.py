# SPDX-License-Identifier: Apache-2.0
"""Downloads of addresses that the content of a repository names."""

from collections.abc import Collection

import httpx2

from pipecd.model.errors import UserMistake
from pipecd.wire.outbound import OutboundPolicy, OutboundTransport

_MAX_REDIRECTS = 5


async def download(url: str, *, hosts: Collection[str], timeout_seconds: float) -> bytes:
    """Returns the content of an address, by https from the public Internet or from `hosts`.

    Every redirect is checked like the address itself.
    """
    policy = OutboundPolicy(hosts=frozenset(host.lower() for host in hosts))
    transport = OutboundTransport(policy)
    async with httpx2.AsyncClient(transport=transport, timeout=timeout_seconds) as client:
        try:
            return await _follow(client, httpx2.URL(url), policy.hosts)
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            raise UserMistake(
                f"the file {url} cannot be downloaded: {str(e) or type(e).__name__}",
                hint="correct its address; a host of a private network must be in "
                "rendering.valueFileHosts of the piped",
            ) from e


async def _follow(client: httpx2.AsyncClient, url: httpx2.URL, hosts: Collection[str]) -> bytes:
    for _ in range(_MAX_REDIRECTS + 1):
        if url.scheme != "https" and url.host.lower() not in hosts:
            raise httpx2.UnsupportedProtocol(f"{url.host} is not read by https")
        response = await client.get(url)
        if response.next_request is None:
            return response.raise_for_status().content
        url = response.next_request.url
    raise httpx2.TooManyRedirects("there are too many redirects")
