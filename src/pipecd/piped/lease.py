# SPDX-License-Identifier: Apache-2.0
"""The lease of this piped: only one process runs with its id.

A piped that starts acquires the lease. If another process holds it, that one is asked to hand over:
it starts no further stage, lets running ones end for a while, releases the lease and ends. A holder
that does not react is fenced: the control plane refuses its requests from then on, and it ends as
soon as it learns that.
"""

import asyncio
import json
import platform
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import structlog

from pipecd.model.errors import LeaseLost, PipecdError, Unsupported
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.state_file import StateFile
from pipecd.proto.service.lease_pb2 import (
    AcquirePipedLeaseRequest,
    AcquirePipedLeaseResponse,
    PipedInstance,
    ReleasePipedLeaseRequest,
)
from pipecd.wire.lease import lease_lost

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# In seconds. The first requests follow each other quickly: a process that was killed a moment ago
# is still connected for an instant.
_FIRST_PAUSE, _PAUSE = 0.1, 0.5
# A holder that has not even acknowledged the request after this time is fenced.
_ACKNOWLEDGED_WITHIN = 10.0
# What a holder may take to end, after its grace period for running stages.
_ENDS_WITHIN = 15.0
# A holder that is about to hand over resumes its work if the new process is gone for so long.
_SUCCESSOR_GONE_AFTER = 5.0
# A piped that was replaced waits until nobody has held the lease for so long: the one that replaced
# it may only be restarting.
_STANDBY_SECONDS = 3.0
_STANDBY_PAUSE = 0.5


class Drain:
    """Brings all deployments to a safe point: between two stages, or before they start."""

    def __init__(self) -> None:
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._resumed = asyncio.Event()
        self._resumed.set()

    def request(self) -> None:
        """Lets running stages end, but no other one begin."""
        self._resumed.clear()

    def resume(self) -> None:
        self._resumed.set()

    @contextmanager
    def deployment(self) -> Generator[None, None, None]:
        """Wraps the run of a deployment."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    async def safe_point(self) -> None:
        """Called by a deployment before each stage; waits there while a drain is requested."""
        while not self._resumed.is_set():
            self._add(-1)
            try:
                await self._resumed.wait()
            finally:
                self._add(1)

    async def wait_until_resumed(self) -> None:
        """Called before a deployment is started; waits while a drain is requested."""
        await self._resumed.wait()

    async def wait(self, at_most: float) -> bool:
        """Returns True once every deployment is at a safe point, False after `at_most` seconds."""
        try:
            async with asyncio.timeout(at_most):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _add(self, count: int) -> None:
        self._busy += count
        if self._busy:
            self._idle.clear()
        else:
            self._idle.set()


@dataclass(kw_only=True)
class Lease:
    """Acquires the lease, and ends piped when it has to be handed over or is lost."""

    api: ControlPlaneClient
    piped_id: str
    workspace: Path
    grace: float
    """How long running stages may take before the lease is handed over, in seconds."""
    drain: Drain = field(default_factory=Drain)
    _host: str = field(init=False, default_factory=platform.node)
    _requested: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _probed: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    async def acquire(self) -> None:
        """Returns when this process holds the lease; a control plane of upstream has none."""
        try:
            if await asyncio.to_thread(self._file.path.exists):
                await self._stand_by()
            granted = await self._request()
        except Unsupported:
            log.warning(
                "the control plane cannot ensure that only one piped runs with this id; make sure "
                "of it yourself, or stages may run twice",
                piped=self.piped_id,
            )
            return
        except LeaseLost as e:
            await self._record_loss(e)
            raise
        await self._granted(granted)
        await self.remove_record_of_loss()

    async def take_over(self) -> None:
        """Returns when the process whose place the launcher gives to this one has handed over.

        Until that one has ended, it uses the workspace, so nothing there is read or written.
        """
        await self._granted(await self._request())

    async def remove_record_of_loss(self) -> None:
        """Called when the workspace belongs to this process, which holds the lease."""
        await asyncio.to_thread(self._file.path.unlink, missing_ok=True)

    def handover_requested(self) -> None:
        """Called when the control plane forwards the request of a newer process."""
        self._requested.set()

    def probed(self) -> None:
        """Called when a process that was replaced asks whether this one still runs."""
        self._probed.set()

    async def run(self) -> None:
        """Raises LeaseLost when a newer process takes over."""
        lost = asyncio.create_task(self.api.lease.wait_until_lost(), name="lease lost")
        handover = asyncio.create_task(self._hand_over(), name="handover")
        answers = asyncio.create_task(self._answer_probes(), name="answers to probes of the lease")
        try:
            done, _ = await asyncio.wait({lost, handover}, return_when=asyncio.FIRST_COMPLETED)
            error = done.pop().result()
        finally:
            for task in (lost, handover, answers):
                task.cancel()
        await self._record_loss(error)
        raise error

    async def release(self) -> None:
        """Releases the lease, so that the next process gets it at once."""
        if not (epoch := self.api.lease.epoch) or self.api.lease.loss:
            return
        try:
            await self.api.lease.release(ReleasePipedLeaseRequest(epoch=epoch))
        except PipecdError as e:
            log.debug("lease not released", error=str(e))

    async def _stand_by(self) -> None:
        """Waits as long as the process that has replaced this one runs.

        Supervisors restart what ends: without this, two pipeds would replace each other forever.
        """
        loop, is_logged = asyncio.get_running_loop(), False
        seen_at = loop.time()
        while loop.time() - seen_at < _STANDBY_SECONDS:
            response = await self.api.lease.acquire(AcquirePipedLeaseRequest(probe=True))
            if response.HasField("holder"):
                seen_at = loop.time()
            if not is_logged:
                is_logged = True
                log.warning(
                    "another piped with this id has replaced this one, waiting until it is gone; "
                    "only one piped may run with an id: stop one of the two",
                    piped=self.piped_id,
                    host=response.holder.host,
                    gone_for=_STANDBY_SECONDS,
                )
            await asyncio.sleep(_STANDBY_PAUSE)

    async def _request(self) -> AcquirePipedLeaseResponse:
        """Requests the lease until it is granted; fences a holder that takes too long."""
        loop = asyncio.get_running_loop()
        request, pause = AcquirePipedLeaseRequest(host=self._host), _FIRST_PAUSE
        started, is_logged = loop.time(), False
        while True:
            response = await self.api.lease.acquire(request)
            if response.granted:
                return response
            request.ticket = response.ticket
            if response.standby:
                await self._stand_by()
                started = loop.time()
                continue
            if not response.HasField("holder"):
                continue
            if not is_logged:
                is_logged = True
                log.warning(
                    "another piped with this id is running, waiting until it hands over",
                    piped=self.piped_id,
                    host=response.holder.host,
                )
            limit = self.grace + _ENDS_WITHIN if response.draining else _ACKNOWLEDGED_WITHIN
            request.force = loop.time() - started >= limit
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE)

    async def _granted(self, lease: AcquirePipedLeaseResponse) -> None:
        await asyncio.sleep(lease.wait_millis / 1000)
        self.api.lease.epoch = lease.epoch
        log.debug("lease acquired", epoch=lease.epoch)

    async def _answer_probes(self) -> None:
        while True:
            await self._probed.wait()
            self._probed.clear()
            try:
                await self.api.lease.acquire(AcquirePipedLeaseRequest(probe=True))
            except PipecdError as e:
                log.debug("probe of the lease not answered", error=str(e))

    async def _hand_over(self) -> LeaseLost:
        """Returns when every deployment is at a safe point, or the grace period is over."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                successor = await self._drain()
            except PipecdError as e:
                log.warning("lease not handed over", error=str(e))
                successor = None
            if successor is not None:
                return lease_lost(self.piped_id, successor)
            self.drain.resume()

    async def _drain(self) -> PipedInstance | None:
        """Returns the successor, or None if it is gone before this process has ended its work."""
        loop = asyncio.get_running_loop()
        request = ReleasePipedLeaseRequest(epoch=self.api.lease.epoch, draining=True)
        response = await self.api.lease.release(request)
        if not response.HasField("successor"):
            return None
        successor = response.successor
        log.warning(
            "another piped with this id has started; this one ends when its running stages have "
            "ended",
            piped=self.piped_id,
            host=successor.host,
            at_most=self.grace,
        )
        self.drain.request()
        now = loop.time()
        deadline, seen_at, requests, is_seen = now + self.grace, now, response.requests, False
        while not is_seen or not (await self.drain.wait(_PAUSE) or loop.time() >= deadline):
            if not is_seen:
                await asyncio.sleep(_PAUSE / 2)
            response = await self.api.lease.release(request)
            if response.requests > requests:
                requests, seen_at, is_seen = response.requests, loop.time(), True
            elif loop.time() - seen_at > _SUCCESSOR_GONE_AFTER:
                log.warning(
                    "the other piped is gone before this one has handed over; this one continues",
                    piped=self.piped_id,
                    host=successor.host,
                )
                return None
        return successor

    async def _record_loss(self, error: LeaseLost) -> None:
        content = json.dumps({"replaced": error.message}).encode()
        await asyncio.to_thread(self._file.write, content)

    @cached_property
    def _file(self) -> StateFile:
        """Exists in the workspace of a piped that was replaced."""
        file = self.workspace / "replaced.json"
        return StateFile(file, "a restart may take over again instead of waiting")
