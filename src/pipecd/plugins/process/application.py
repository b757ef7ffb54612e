# SPDX-License-Identifier: Apache-2.0
"""One application under supervision: carries out what `reconcile` decides."""

import asyncio
import logging
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pipecd.plugins.process import programs
from pipecd.plugins.process.desired import DesiredApplication, DesiredVariant
from pipecd.plugins.process.endpoint import Endpoint
from pipecd.plugins.process.foreign_listener import foreign_listener
from pipecd.plugins.process.instance import (
    NOT_HEALTHY,
    ApplicationStatus,
    Instance,
    Phase,
    Usage,
)
from pipecd.plugins.process.probes import HOST, pause_after_probe, probe
from pipecd.plugins.process.reconcile import (
    Action,
    Drain,
    Forget,
    Kill,
    Launch,
    Terminate,
    VariantRoute,
    crashes_after,
    previous_versions,
    reconcile,
)
from pipecd.plugins.process.router import Backend, Router, Share
from pipecd.plugins.process.state_file import StoredApplication, create_passable

logger = logging.getLogger("supervisor")

_LONGEST_PROBE = 10.0
_UNHEALTHY_AFTER = 3
_AFTER_ERROR_SECONDS = 1.0
# Above the ports of most services and below those that the kernel chooses.
_PORTS = range(20_000, 30_000)


class SupervisedApplication:
    """The instances of one application, their probes and their routes."""

    def __init__(
        self,
        stored: StoredApplication,
        *,
        owner: Path,
        directory: Path,
        router: Router,
        on_change: Callable[[], None],
    ) -> None:
        self.desired = stored.desired
        self.instances = {instance.id: instance for instance in stored.instances}
        self.changed_files: dict[str, tuple[str, ...]] = {}
        self.endpoint = Endpoint(router, stored.desired.id)
        self._serving = dict(stored.serving)
        self._previous: Mapping[str, DesiredVariant] = stored.previous
        self._owner, self._directory = owner, directory
        self._on_change = on_change
        self._routes: Mapping[str, VariantRoute] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._others = set[asyncio.Task[None]]()
        self._drained = set[str]()
        # The same version may be rolled out twice, and is judged anew each time.
        self._rollouts = Counter[str]()
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    # What the supervisor and its clients ask for

    def stored(self) -> StoredApplication:
        """Returns what a later supervisor must know."""
        return StoredApplication(
            self.desired,
            tuple(self.instances.values()),
            self._serving,
            self._previous,
            self.endpoint.listener,
        )

    def status(self) -> ApplicationStatus:
        """Returns what runs."""
        is_reachable = self.endpoint.listener is not None or self.desired.listener is None
        routed = {name: route.weight for name, route in self._routes.items()}
        return ApplicationStatus(
            desired=self.desired,
            instances=tuple(sorted(self.instances.values(), key=lambda i: i.id)),
            listener=self.endpoint.listener,
            routed=routed if is_reachable else {},
            serving=dict(self._serving),
            traffic=self.endpoint.traffic(),
            listen_error=self.endpoint.error,
            changed_files=dict(self.changed_files),
        )

    def apply(self, desired: DesiredApplication) -> None:
        """Makes another state the desired one."""
        for name, variant in desired.variants.items():
            before = self.desired.variants.get(name)
            if before is None or before.program.identity != variant.program.identity:
                self._rollouts[name] += 1
        self._previous = previous_versions(self.desired, desired, self._previous, self._serving)
        self.desired = desired
        for instance in self.instances.values():
            variant = desired.variants.get(instance.variant)
            if variant and variant.program.identity == instance.identity:
                self._update(
                    instance.id,
                    probe=variant.health,
                    grace_period=variant.grace_period,
                    commit=variant.program.commit,
                    crashes=0,
                )
        self.endpoint.forget_error()
        self._wake.set()

    @property
    def is_gone(self) -> bool:
        """Whether nothing shall run and nothing does."""
        return not self.desired.variants and not self.instances

    # Life

    def start(self) -> None:
        """Adopts the running instances."""
        for instance in [*self.instances.values()]:
            if not instance.is_alive:
                continue
            if programs.start_time(instance.pid) == instance.start_time:
                self._attend(instance)
            else:
                text = "ended while no supervisor was running"
                self._update(instance.id, phase=Phase.EXITED, since=time.time(), exit=text, pid=0)
        self._loop = asyncio.create_task(self._run(), name=self.desired.name)

    async def stop(self) -> None:
        """Stops to attend the instances, which go on."""
        tasks = [*self._others, *(task for tasks in self._tasks.values() for task in tasks)]
        tasks += [self._loop] if self._loop else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.endpoint.stop()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                again_at = await self._reconcile()
            except Exception:
                # One application must not end the others, and the next attempt may succeed.
                logger.exception("%s: cannot be supervised", self.desired.name)
                again_at = time.time() + _AFTER_ERROR_SECONDS
            wait = None if again_at is None else max(again_at - time.time(), 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _reconcile(self) -> float | None:
        """Carries out the next decision; returns when the one after it is due."""
        decision = reconcile(
            self.desired,
            tuple(self.instances.values()),
            time.time(),
            drained=frozenset(self._drained),
            serving=self._serving,
            previous=self._previous,
        )
        self._previous = decision.previous
        self._route(decision.routes)
        for action in decision.actions:
            self._perform(action)
        # The routes are known before the first connection is accepted.
        if await self.endpoint.follow(self.desired.listener) or decision.actions:
            self._on_change()
        if decision.actions:
            return 0.0
        times = [t for t in (decision.again_at, self.endpoint.again_at or None) if t is not None]
        return min(times, default=None)

    def _route(self, routes: Mapping[str, VariantRoute]) -> None:
        if routes != self._routes:
            self._routes = routes
            self._serving |= {name: route.identity for name, route in routes.items()}
            self._on_change()
        shares = {
            name: Share(
                route.weight,
                tuple(Backend(HOST, self.instances[id].port) for id in route.instances),
                version=f"{route.identity}-{self._rollouts[name]}",
            )
            for name, route in routes.items()
        }
        self.endpoint.route(shares)

    # Actions

    def _perform(self, action: Action) -> None:
        now = time.time()
        match action:
            case Launch():
                self._launch(action)
            case Drain(id):
                self._update(id, phase=Phase.DRAINING, since=now)
                self._spawn(self._drain(self.instances[id]))
            case Terminate(id, is_unhealthy):
                instance = self.instances[id]
                why = instance.health or "it has not answered yet"
                seconds = f"{instance.probe.timeout:g}s"
                cause = f"{NOT_HEALTHY} {seconds}: {why}" if is_unhealthy else ""
                self._update(id, phase=Phase.STOPPING, since=now, cause=cause)
                programs.signal_program(instance.pid, instance.start_time, signal.SIGTERM)
            case Kill(id):
                instance = self.instances[id]
                programs.signal_program(instance.pid, instance.start_time, signal.SIGKILL)
                # The exit is an event; until then this is not done again at once.
                self._update(id, since=now)
            case Forget(id):
                del self.instances[id]
                self._drained.discard(id)

    def _launch(self, action: Launch) -> None:
        name, variant, index = action.variant, action.version, action.index
        program, now = variant.program, time.time()
        port = self._free_port() if program.has_port else 0
        log = self._directory / "logs" / f"{name}-{index}.log"
        create_passable(self._directory)
        log.parent.mkdir(exist_ok=True, mode=0o700)
        instance = Instance(
            variant=name,
            identity=program.identity,
            index=index,
            phase=Phase.STARTING,
            since=now,
            commit=program.commit,
            release=program.release,
            port=port,
            started_at=now,
            restarts=action.restarts,
            crashes=action.crashes,
            probe=variant.health,
            limits=program.limits,
            grace_period=variant.grace_period,
            log=str(log),
            log_offset=log.stat().st_size if log.exists() else 0,
        )
        if former := self.instances.get(instance.id):
            instance = replace(instance, exit=former.exit)
        try:
            child = programs.start(self._command(instance, variant, log))
        except programs.CannotStart as e:
            logger.warning("%s: %s: %s", self.desired.name, instance.id, e)
            self.instances[instance.id] = replace(
                instance,
                phase=Phase.EXITED,
                exit=f"cannot start: {e}",
                crashes=crashes_after(instance, now),
            )
            return
        self._children[child.pid] = child
        instance = replace(instance, pid=child.pid, start_time=programs.start_time(child.pid))
        self.instances[instance.id] = instance
        logger.info("%s: %s started as process %s", self.desired.name, instance.id, child.pid)
        self._attend(instance)

    def _command(self, instance: Instance, variant: DesiredVariant, log: Path) -> programs.Command:
        program = variant.program
        release = Path(program.release)
        port = {"PORT": str(instance.port)} if instance.port else {}
        return programs.Command(
            argv=(program.command, *program.args),
            release=release,
            directory=release / program.working_directory,
            env={
                **variant.inherited,
                **program.env,
                **port,
                "PIPECD_APPLICATION": self.desired.name,
                "PIPECD_VARIANT": instance.variant,
                "PIPECD_COMMIT": instance.commit,
                "PIPECD_INSTANCE": str(instance.index),
                programs.OWNER_VARIABLE: str(self._owner),
            },
            log=log,
            user=program.limits.user,
        )

    def _free_port(self) -> int:
        used = {instance.port for instance in self.instances.values()}
        for _ in range(200):
            port = random.SystemRandom().choice(_PORTS)
            if port not in used:
                with suppress(OSError), socket.socket() as attempt:
                    attempt.bind((HOST, port))
                    return port
        with socket.socket() as attempt:
            attempt.bind((HOST, 0))
            return attempt.getsockname()[1]

    async def _drain(self, instance: Instance) -> None:
        if instance.port:
            await self.endpoint.drain(Backend(HOST, instance.port), instance.grace_period)
        current = self.instances.get(instance.id)
        if current is not None and current.phase is Phase.DRAINING:
            self._drained.add(instance.id)
        self._wake.set()

    # Attendance of one instance

    def _attend(self, instance: Instance) -> None:
        """Watches an instance until it exits."""
        for task in self._tasks.pop(instance.id, []):
            task.cancel()
        self._drained.discard(instance.id)
        self._tasks[instance.id] = [
            asyncio.create_task(self._watch_exit(instance)),
            asyncio.create_task(self._watch_health(instance.id)),
        ]
        if instance.phase is Phase.DRAINING:
            self._spawn(self._drain(instance))

    async def _watch_exit(self, instance: Instance) -> None:
        child = self._children.get(instance.pid)
        text = await programs.wait_for_exit(instance.pid, instance.start_time, child)
        self._children.pop(instance.pid, None)
        programs.end_leftovers(instance.pid)
        for task in self._tasks.pop(instance.id, []):
            if task is not asyncio.current_task():
                task.cancel()
        current, now = self.instances[instance.id], time.time()
        text = f"{current.cause}, and {text}" if current.cause else text
        logger.info("%s: %s %s", self.desired.name, instance.id, text)
        if current.phase is Phase.STOPPING and not current.cause:
            # It ended because it was not needed: if it is by now, that is no restart.
            self._perform(Forget(instance.id))
        else:
            self._update(
                instance.id,
                phase=Phase.EXITED,
                since=now,
                exit=text,
                cause="",
                pid=0,
                usage=Usage(),
                crashes=crashes_after(current, now),
            )
        self._on_change()
        self._wake.set()

    async def _watch_health(self, id: str) -> None:
        failures = 0
        while True:
            instance = self.instances[id]
            is_new = instance.phase is Phase.STARTING
            error = await self._probe(instance)
            instance = self.instances[id]
            failures = failures + 1 if error else 0
            phase = instance.phase
            if not error and phase in (Phase.STARTING, Phase.UNHEALTHY):
                phase = Phase.HEALTHY
            elif failures >= _UNHEALTHY_AFTER and phase is Phase.HEALTHY:
                phase = Phase.UNHEALTHY
            if phase is not instance.phase:
                self._update(id, phase=phase, since=time.time(), health=error)
                self._on_change()
                self._wake.set()
            elif error != instance.health:
                self._update(id, health=error)
            await asyncio.sleep(
                pause_after_probe(instance.probe, is_pending=is_new and bool(error))
            )

    async def _probe(self, instance: Instance) -> str:
        if not instance.port:
            # Without a port, an instance is healthy when it still runs after the interval.
            left = instance.started_at + instance.probe.interval - time.time()
            if instance.phase is Phase.STARTING and left > 0:
                await asyncio.sleep(left)
            return ""
        # Several probes fit into the time in which an instance must become healthy.
        at_most = min(instance.probe.timeout / 3, _LONGEST_PROBE)
        protocol, path = instance.probe.protocol, instance.probe.path
        error = await probe(protocol, instance.port, path, at_most=at_most)
        # As long as a healthy instance listens, nobody else can.
        if error or instance.phase is Phase.HEALTHY:
            return error
        stranger = await asyncio.to_thread(
            foreign_listener, instance.port, instance.pid, instance.limits.user
        )
        if stranger is None:
            return ""
        return f"port {instance.port} belongs to a program of another user, {stranger}"

    # What the supervisor measures for all applications

    def measured(self, id: str, usage: Usage) -> None:
        """Takes what an instance uses, and ends it when that is more than it may."""
        instance = self.instances.get(id)
        if instance is None or not instance.is_alive or not usage.processes:
            return
        self._update(id, usage=usage)
        limits, cause = instance.limits, ""
        if limits.memory and usage.memory > limits.memory:
            used, allowed = _mebibytes(usage.memory), _mebibytes(limits.memory)
            cause = f"used {used} of memory, {allowed} allowed by limits.memory"
        elif limits.processes and usage.processes > limits.processes:
            cause = (
                f"had {usage.processes} processes, {limits.processes} allowed by limits.processes"
            )
        if cause and not instance.cause:
            self._update(id, cause=cause)
            programs.signal_program(instance.pid, instance.start_time, signal.SIGKILL)

    def truncated(self, log: str) -> None:
        """Takes that a log begins anew."""
        for instance in [*self.instances.values()]:
            if instance.log == log:
                self._update(instance.id, log_offset=0)

    def _update(self, id: str, **fields: object) -> None:
        self.instances[id] = replace(self.instances[id], **fields)  # pyright: ignore[reportArgumentType]

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)


def _mebibytes(size: int) -> str:
    return f"{size / 1024**2:.0f} MiB"
