# SPDX-License-Identifier: Apache-2.0
"""A piped that the launcher starts beside a running one: it checks its start, and waits.

Until it is told to start, it uses nothing that the running one uses: not the workspace, not the
admin port, no plugin and no lease.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from pipecd.config.read import PipedConfig, deploy_target_names
from pipecd.model.errors import Unsupported
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.pluginhost.host import PLUGIN_DIGESTS, PluginDownloads, find_unstartable
from pipecd.piped.pluginhost.registry import StartFailure
from pipecd.program.handover import LauncherConnection, Phase, PipedReport, StartOrder
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from pipecd.proto.service.piped_pb2 import GetDesiredVersionRequest
from pipecd.secrets.decrypter import open_decrypter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_MAX_REASON = 500


def report_of(
    phase: Phase, config: PipedConfig, failures: Iterable[StartFailure], *, has_lease: bool
) -> PipedReport:
    """Returns the report of which plugins and deploy targets a piped can use."""
    unusable = {
        _name(each.plugin, each.target): each.reason[:_MAX_REASON]
        for each in (*config.unusable, *failures)
        if not (isinstance(each, StartFailure) and each.is_temporary)
    }
    names = [
        name
        for plugin, targets in deploy_target_names(config).items()
        for name in (plugin, *(_name(plugin, target) for target in targets))
    ]
    usable = tuple(name for name in names if name not in unusable)
    return PipedReport(phase, has_lease=has_lease, usable=usable, unusable=unusable)


async def stand_by(
    launcher: LauncherConnection,
    config: PipedConfig,
    api: ControlPlaneClient,
    *,
    plugins_dir: Path,
    workspace: Path,
) -> StartOrder:
    """Reports to the launcher that this piped is ready; returns how it is to start, once told."""
    spec = config.spec
    if spec.secret_management is not None:
        launcher.report(PipedReport(Phase.CHECKING, "secretManagement"))
        await asyncio.to_thread(open_decrypter, spec.secret_management)
    launcher.report(PipedReport(Phase.CHECKING, "the control plane"))
    has_lease = await _has_lease(api)
    launcher.report(PipedReport(Phase.CHECKING, "the plugins"))
    with tempfile.TemporaryDirectory(prefix="piped-") as directory:
        digests = Path(directory, PLUGIN_DIGESTS)
        with suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.copyfile, workspace / PLUGIN_DIGESTS, digests)
        downloads = PluginDownloads(
            plugins_dir, digests=digests, require_checksum=spec.require_checksum
        )
        failures = await find_unstartable(spec.plugins, downloads)
    launcher.report(report_of(Phase.READY, config, failures, has_lease=has_lease))
    log.info("piped is ready, waiting for the launcher", piped=spec.piped_id)
    return await launcher.wait_for_order()


async def _has_lease(api: ControlPlaneClient) -> bool:
    """Whether the control plane, which accepts the key of this piped, grants leases."""
    try:
        await api.lease.acquire(AcquirePipedLeaseRequest(probe=True))
    except Unsupported:
        await api.get_desired_version(GetDesiredVersionRequest())
        return False
    return True


def _name(plugin: str, target: str) -> str:
    return f"{plugin}/{target}" if target else plugin
