# SPDX-License-Identifier: Apache-2.0
"""What the supervisor answers by HTTP on loopback: a verdict for analysis, and metrics.

    GET /applications/NAME/canary?max-error-rate=0.05&min-requests=20
    GET /metrics

The verdict is the status code: 200 while the version of the variant is good, 503 when too many of
its requests failed, when it does not run, or when one of its instances was restarted, both within
the last hour. Fewer requests than `min-requests` prove nothing, so they are not judged.
"""

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from pipecd.plugins.process.applications import Supervisor
from pipecd.plugins.process.endpoint import TRAFFIC_SECONDS
from pipecd.plugins.process.instance import ApplicationStatus, Phase, StatusPage, VariantTraffic
from pipecd.plugins.process.tcp_relay import reset

logger = logging.getLogger("supervisor")

_HOST = "127.0.0.1"
_TIMEOUT = 10.0
_AGAIN_SECONDS = 2.0
_MOST_CONNECTIONS = 64
# A web page that a browser on this machine shows may give loopback a name of its own.
_OWN_NAME = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]+)?", re.IGNORECASE)


def verdict(
    status: ApplicationStatus, variant: str, now: float, *, max_error_rate: float, min_requests: int
) -> tuple[bool, dict[str, Any]]:
    """Returns whether the desired version of a variant is good, and why.

    Restarts count as long as requests do: what happened long ago says nothing about now.
    """
    instances = status.of(variant)
    restarted = [i for i in instances if i.restarts and now - i.started_at < TRAFFIC_SECONDS]
    traffic = status.traffic.get(variant, VariantTraffic())
    facts: dict[str, Any] = {
        "application": status.desired.name,
        "variant": variant,
        "commit": instances[0].commit if instances else "",
        "healthy": sum(instance.phase is Phase.HEALTHY for instance in instances),
        "restarts": sum(instance.restarts for instance in instances),
        "requests": traffic.requests,
        "errors": traffic.errors,
        "errorRate": round(traffic.error_rate, 4),
    }
    if not facts["healthy"]:
        return False, {**facts, "reason": f"no instance of {variant} is healthy"}
    if restarted:
        reason = f"an instance of {variant} was restarted: {restarted[0].exit}"
        return False, {**facts, "reason": reason}
    if traffic.requests < min_requests:
        are = "1 request is" if traffic.requests == 1 else f"{traffic.requests} requests are"
        reason = f"{are} too few to judge, at least {min_requests}"
        return True, {**facts, "reason": reason}
    if traffic.error_rate > max_error_rate:
        reason = f"{traffic.errors} of {traffic.requests} requests failed"
        return False, {**facts, "reason": reason}
    return True, {**facts, "reason": "as good as it must be"}


def metrics(statuses: list[ApplicationStatus]) -> Iterator[str]:
    """Yields the lines of Prometheus's text format."""
    samples: dict[str, list[str]] = {}

    def add(name: str, value: float, **labels: str) -> None:
        text = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        samples.setdefault(name, []).append(f"{name}{{{text}}} {value:g}")

    for status in statuses:
        name = status.desired.name
        for variant, traffic in status.traffic.items():
            where = {"application": name, "variant": variant}
            add("pipecd_process_requests_total", traffic.all_requests, **where)
            add("pipecd_process_errors_total", traffic.all_errors, **where)
            add("pipecd_process_weight", status.routed.get(variant, 0), **where)
        for each in status.instances:
            where = {
                "application": name,
                "variant": each.variant,
                "commit": each.commit[:7],
                "instance": str(each.index),
            }
            add("pipecd_process_healthy", each.phase is Phase.HEALTHY, **where)
            add("pipecd_process_restarts", each.restarts, **where)
            add("pipecd_process_memory_bytes", each.usage.memory, **where)
            add("pipecd_process_cpu_cores", each.usage.cpu, **where)
    for name, lines in sorted(samples.items()):
        yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
        yield from lines


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def answer(supervisor: Supervisor, target: str) -> tuple[int, str, str]:
    """Returns status, type and body of the answer to a GET."""
    url = urlsplit(target)
    parts = [unquote(part) for part in url.path.split("/") if part]
    match parts:
        case ["metrics"]:
            text = "".join(f"{line}\n" for line in metrics(supervisor.statuses()))
            return 200, "text/plain; version=0.0.4", text
        case ["applications", name, variant]:
            application = supervisor.find(name)
            if application is None:
                return _json(404, {"reason": f"there is no application {name!r}"})
            given = parse_qs(url.query)
            try:
                rate = float(given.get("max-error-rate", ["0.05"])[0])
                requests = int(given.get("min-requests", ["1"])[0])
            except ValueError:
                return _json(400, {"reason": "max-error-rate and min-requests must be numbers"})
            is_good, facts = verdict(
                application.status(),
                variant,
                time.time(),
                max_error_rate=rate,
                min_requests=requests,
            )
            return _json(200 if is_good else 503, facts)
        case _:
            return _json(404, {"reason": "see /metrics and /applications/NAME/VARIANT"})


def _json(status: int, body: Mapping[str, Any]) -> tuple[int, str, str]:
    return status, "application/json", json.dumps(body) + "\n"


@asynccontextmanager
async def serve_status(supervisor: Supervisor) -> AsyncGenerator[None]:
    """Serves the page on the configured port, and follows changes of it."""
    task = asyncio.create_task(_follow(supervisor))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _follow(supervisor: Supervisor) -> None:
    seen, free = -1, asyncio.Semaphore(_MOST_CONNECTIONS)
    while True:
        port = supervisor.status_page.port
        server = None
        if port:
            try:
                server = await asyncio.start_server(
                    lambda reader, writer: _serve(supervisor, free, reader, writer), _HOST, port
                )
                supervisor.report_status_page(StatusPage(port))
            except OSError as e:
                # The former supervisor may not have closed it yet.
                error = (
                    f"the status page cannot listen on port {port} of {_HOST}: "
                    f"{os.strerror(e.errno or 0)}; stop the program that uses it, or choose "
                    "another statusPort"
                )
                if error != supervisor.status_page.error:
                    logger.warning(error)
                supervisor.report_status_page(StatusPage(port, error))
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
        try:
            while port == supervisor.status_page.port:
                seen = await supervisor.next_change(seen)
        finally:
            if server is not None:
                server.close()


def respond(supervisor: Supervisor, head: str) -> bytes:
    """Returns the response to a request with this head."""
    line, *fields = head.split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[0] not in ("GET", "HEAD"):
        status, kind, body = _json(405, {"reason": "only GET is answered"})
    elif not all(_OWN_NAME.fullmatch(name) for name in _hosts(fields)):
        status, kind, body = _json(421, {"reason": f"the Host must be {_HOST} or localhost"})
    else:
        status, kind, body = answer(supervisor, words[1])
    content = body.encode()
    start = (
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
    return start if words[0] == "HEAD" else start + content


def _hosts(fields: list[str]) -> Iterator[str]:
    for field in fields:
        name, _, value = field.partition(":")
        if name.strip().lower() == "host":
            yield value.strip()


async def _serve(
    supervisor: Supervisor,
    free: asyncio.Semaphore,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    try:
        if free.locked():
            return
        async with free, asyncio.timeout(_TIMEOUT):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(respond(supervisor, head.decode("latin-1")))
            await writer.drain()
    except TimeoutError:
        # A client that does not read would keep the connection open until it does.
        reset(cast("asyncio.Transport", writer.transport))
    except (OSError, ValueError, asyncio.IncompleteReadError):
        pass
    except asyncio.LimitOverrunError:
        pass
    finally:
        writer.close()
