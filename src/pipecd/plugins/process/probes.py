# SPDX-License-Identifier: Apache-2.0
"""Probes whether an instance is healthy; the result is an error text, "" when it is."""

import asyncio

from pipecd.plugins.process.desired import HealthProbe, Protocol

HOST = "127.0.0.1"
# All applications of a deploy target share the supervisor, and none must keep it busy.
_SHORTEST_PAUSE = 0.05
_LONGEST_HEAD = 64 * 1024


def pause_after_probe(health: HealthProbe, *, is_pending: bool) -> float:
    """Returns the seconds until the next probe, few while an instance has yet to become healthy."""
    return _SHORTEST_PAUSE if is_pending else max(health.interval, _SHORTEST_PAUSE)


async def probe(protocol: Protocol, port: int, path: str, *, at_most: float) -> str:
    """Returns why an instance is not healthy; "" if it is."""
    try:
        async with asyncio.timeout(at_most):
            if protocol is Protocol.TCP:
                return await _connect(port)
            return await _get(port, path)
    except TimeoutError:
        what = f"GET {path}" if protocol is Protocol.HTTP else "the connection"
        return f"{what} on port {port} was not answered within {round(at_most, 1):g}s"
    except ConnectionRefusedError:
        return f"nothing listens on port {port}, which PORT in its environment names"
    except OSError as e:
        return f"the connection to port {port} failed: {e.strerror or e}"


async def _connect(port: int) -> str:
    _, writer = await asyncio.open_connection(HOST, port)
    writer.close()
    return ""


async def _get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection(HOST, port, limit=_LONGEST_HEAD)
    try:
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nUser-Agent: pipecd-health\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode())
        line = await reader.readline()
    except ValueError:
        line = b""
    finally:
        writer.close()
    parts = line.split()
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/") or not parts[1].isdigit():
        return f"GET {path} on port {port} was not answered with HTTP"
    status = int(parts[1])
    return "" if 200 <= status < 400 else f"GET {path} on port {port} was answered with {status}"
