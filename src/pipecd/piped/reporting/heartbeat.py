# SPDX-License-Identifier: Apache-2.0
"""Registers this piped with the control plane and sends its heartbeat with its metrics."""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from pipecd.config.catalog import Catalog
from pipecd.config.envelope import Generation
from pipecd.config.piped import KEY_PAIR
from pipecd.config.piped_mask import reported_config
from pipecd.config.read import PipedConfig, deploy_target_names
from pipecd.model.errors import PipecdError
from pipecd.observe.version import build_version
from pipecd.piped.cache.refresh import OutageLog, RefreshSchedule
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.piped_pb2 import (
    ReportPipedMetaRequest,
    ReportPipedMetaResponse,
    ReportStatRequest,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_INTERVAL = 60.0


def piped_meta(
    config: PipedConfig, catalog: Catalog, *, public_key: bytes
) -> ReportPipedMetaRequest:
    """Returns what piped reports about itself when it starts; secrets are masked."""
    spec = config.spec
    targets = deploy_target_names(config)
    if public_key:
        encryption = Piped.SecretEncryption(type=KEY_PAIR, public_key=public_key.decode())
    else:
        encryption = Piped.SecretEncryption(type="NONE")
    providers: list[Piped.PlatformProvider] = []
    if config.generation is Generation.V0:
        # A v0 configuration calls its deploy targets platform providers.
        providers = [
            Piped.PlatformProvider(name=target, type=kind.provider_type if kind else plugin)
            for plugin, names in targets.items()
            for kind in (catalog.v0_kind_of_plugin(plugin),)
            for target in names
        ]
    return ReportPipedMetaRequest(
        version=build_version(),
        config=reported_config(spec),
        repositories=[
            ApplicationGitRepository(id=r.repo_id, remote=r.remote, branch=r.branch)
            for r in spec.repositories
        ],
        platform_providers=providers,
        plugins=[
            Piped.Plugin(name=plugin, deploy_targets=names) for plugin, names in targets.items()
        ],
        secret_encryption=encryption,
    )


@dataclass(kw_only=True)
class Heartbeat:
    """Registers this piped once, and reports its metrics every minute."""

    api: ControlPlaneClient
    meta: ReportPipedMetaRequest
    metrics: Callable[[], bytes]
    on_reported: Callable[[], None] = lambda: None
    """Called when the control plane has received the metrics."""
    # The control plane shows a piped without reports as offline, so wake-ups do not slow this down.
    schedule: RefreshSchedule = field(
        default_factory=lambda: RefreshSchedule(_INTERVAL, resync=(_INTERVAL, _INTERVAL))
    )

    async def register(self) -> ReportPipedMetaResponse:
        """Reports version, configuration and plugins; raises if the piped key is not accepted."""
        response = await self.api.report_piped_meta(self.meta)
        log.info("registered with the control plane", name=response.name)
        return response

    async def run(self) -> None:
        outage = OutageLog("statistics")
        while True:
            has_failed = False
            try:
                await self.api.report_stat(ReportStatRequest(piped_stats=self.metrics()))
            except PipecdError as e:
                has_failed = True
                outage.failed(e)
            else:
                outage.succeeded()
                self.on_reported()
            await self.schedule.wait(after_failure=has_failed)
