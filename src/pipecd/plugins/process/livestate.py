# SPDX-License-Identifier: Apache-2.0
"""The live state of an application: its router, variants and instances, and what drifted."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pipecd.plugins.process.desired import CANARY, PRIMARY
from pipecd.plugins.process.instance import ApplicationStatus, Instance, Phase, VariantTraffic
from pipecd.plugins.process.wanted import WantedApplication, name_some
from pipecd.sdk import Health, LiveState, Resource, SyncState, SyncStatus

_MAX_NAMED = 5


def live_state(
    status: ApplicationStatus, wanted: WantedApplication, target: str, files: Sequence[str] = ()
) -> LiveState:
    """Returns what runs on a deploy target, compared with what Git says.

    `files` are the names of the files that are different in the running release.
    """
    return LiveState(list(resource_tree(status, target)), sync_state(status, wanted, files))


def sync_state(
    status: ApplicationStatus, wanted: WantedApplication, files: Sequence[str] = ()
) -> SyncState:
    """Returns the sync status with everything that is different."""
    findings = list(_findings(status, wanted, files))
    if not findings:
        return SyncState(SyncStatus.SYNCED)
    return SyncState(SyncStatus.OUT_OF_SYNC, findings[0], "\n".join(findings))


def _findings(
    status: ApplicationStatus, wanted: WantedApplication, files: Sequence[str]
) -> Iterator[str]:
    primary = status.desired.variants.get(PRIMARY)
    if primary is None:
        yield "nothing runs"
        return
    found = wanted.differences(primary, status.desired.listener, files)
    differences = [difference.text for difference in found]
    if differences:
        commit = wanted.variant.program.commit[:7]
        running = primary.program.commit[:7]
        yield f"commit {running} runs, and commit {commit} of Git differs in {differences[0]}"
        yield from differences[1:]
    if CANARY in status.desired.variants:
        yield "a canary runs that no deployment has ended"
    for instance in status.of(PRIMARY):
        if instance.phase in (Phase.EXITED, Phase.UNHEALTHY):
            yield f"{_name(instance)} {_state_text(instance)}"
        elif instance.phase is Phase.STARTING and instance.restarts:
            yield f"{_name(instance)} {instance.exit} and starts again"
    for release, names in status.changed_files.items():
        listed = name_some(names, _MAX_NAMED)
        yield f"somebody changed {listed} in the release {Path(release).name}"
    if status.listen_error:
        yield status.listen_error


def resource_tree(status: ApplicationStatus, target: str) -> Iterator[Resource]:
    """Yields the router, below it the variants and below them their instances."""
    listener, root = status.desired.listener, ""
    if listener:
        root = f"{target}/router"
        is_served = bool(status.routed) and not status.listen_error
        yield Resource(
            id=root,
            name=str(listener),
            kind="Router",
            target=target,
            health=Health.HEALTHY if is_served else Health.UNHEALTHY,
            health_text=status.listen_error or ("" if is_served else "no instance can serve"),
            metadata={"Address": str(listener), "Protocol": listener.protocol.value},
        )
    if page := status.status_page:
        yield Resource(
            id=f"{target}/status",
            name=f"127.0.0.1:{page.port}",
            kind="StatusPage",
            target=target,
            health=Health.UNHEALTHY if page.error else Health.HEALTHY,
            health_text=page.error,
        )
    for name, variant in status.desired.variants.items():
        instances = status.of(name)
        healthy = sum(each.phase is Phase.HEALTHY for each in instances)
        traffic = status.traffic.get(name, VariantTraffic())
        text = f"{healthy} of {variant.replicas} instances are healthy"
        id = f"{target}/{name}"
        yield Resource(
            id=id,
            name=name,
            kind="Variant",
            target=target,
            health=_health_of_all(instances, variant.replicas),
            health_text="" if healthy >= variant.replicas else text,
            parents=(root,) if root else (),
            metadata={
                "Commit": variant.program.commit[:12],
                "Release": Path(variant.program.release).name,
                "Share": f"{status.routed.get(name, 0)}%",
                "Requests": str(traffic.requests),
                "Errors": f"{traffic.errors} ({traffic.error_rate:.1%})",
            },
        )
    for instance in status.instances:
        yield _instance(instance, f"{target}/{instance.variant}", status, target)


def _instance(instance: Instance, parent: str, status: ApplicationStatus, target: str) -> Resource:
    usage = instance.usage
    return Resource(
        id=f"{target}/{instance.id}",
        name=_name(instance),
        kind="Process",
        target=target,
        health=_health(instance),
        health_text="" if instance.phase is Phase.HEALTHY else _state_text(instance),
        parents=(parent,) if instance.variant in status.desired.variants else (),
        metadata={
            "Commit": instance.commit[:12],
            "Process": str(instance.pid or "none"),
            "Port": str(instance.port or "none"),
            "State": instance.phase.value,
            "Restarts": str(instance.restarts),
            "Memory": f"{usage.memory / 1024**2:.0f} MiB",
            "CPU": f"{usage.cpu:.2f} cores",
            "Processes": str(usage.processes),
            "Log": instance.log,
        },
        created_at=datetime.fromtimestamp(instance.started_at, UTC),
    )


def _health_of_all(instances: list[Instance], replicas: int) -> Health:
    healths = [_health(instance) for instance in instances]
    if Health.UNHEALTHY in healths:
        return Health.UNHEALTHY
    return Health.HEALTHY if healths.count(Health.HEALTHY) >= replicas else Health.PROGRESSING


def _health(instance: Instance) -> Health:
    match instance.phase:
        case Phase.HEALTHY:
            return Health.HEALTHY
        case Phase.UNHEALTHY | Phase.EXITED:
            return Health.UNHEALTHY
        case _:
            return Health.PROGRESSING


def _name(instance: Instance) -> str:
    return f"{instance.variant}-{instance.index}"


def _state_text(instance: Instance) -> str:
    match instance.phase:
        case Phase.EXITED:
            return f"{instance.exit} and will be started again"
        case Phase.UNHEALTHY:
            return f"is unhealthy: {instance.health}"
        case Phase.STARTING:
            return f"is starting: {instance.health}" if instance.health else "is starting"
        case phase:
            return f"is {phase.value}"


def has_changed(before: ApplicationStatus | None, after: ApplicationStatus) -> bool:
    """Reports whether people would see another live state."""
    return before is None or _shown(before) != _shown(after)


def _shown(status: ApplicationStatus) -> object:
    return (
        status.desired,
        status.listener,
        status.routed,
        status.listen_error,
        status.status_page,
        status.changed_files,
        [
            (
                i.id,
                i.phase,
                i.pid,
                i.restarts,
                i.health,
                i.usage.memory >> 22,
                round(i.usage.cpu, 1),
            )
            for i in status.instances
        ],
    )
