# SPDX-License-Identifier: Apache-2.0
"""Shows the control plane that this piped is there: what it is, and how it does."""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from pipecd.config.catalog import Catalog
from pipecd.config.envelope import Generation
from pipecd.config.piped.mask import reported_config
from pipecd.config.piped.secret import KEY_PAIR
from pipecd.config.read import PipedConfig
from pipecd.model.errors import PipecdError
from pipecd.observe.version import build_version
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.mirror.pace import Pace
from pipecd.piped.mirror.trouble import Trouble
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.piped_pb2 import (
    ReportPipedMetaRequest,
    ReportPipedMetaResponse,
    ReportStatRequest,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_EVERY = 60.0


def piped_meta(
    config: PipedConfig, catalog: Catalog, *, public_key: bytes
) -> ReportPipedMetaRequest:
    """What a piped tells about itself when it starts; secrets are masked."""
    spec = config.spec
    if public_key:
        encryption = Piped.SecretEncryption(type=KEY_PAIR, public_key=public_key.decode())
    else:
        encryption = Piped.SecretEncryption(type="NONE")
    return ReportPipedMetaRequest(
        version=build_version(),
        config=reported_config(spec),
        repositories=[
            ApplicationGitRepository(id=r.repo_id, remote=r.remote, branch=r.branch)
            for r in spec.repositories
        ],
        platform_providers=_providers(config, catalog),
        plugins=[
            Piped.Plugin(name=p.name, deploy_targets=[t.name for t in p.deploy_targets])
            for p in spec.plugins
        ],
        secret_encryption=encryption,
    )


def _providers(config: PipedConfig, catalog: Catalog) -> list[Piped.PlatformProvider]:
    """The deploy targets of a first-generation piped by the name they have in its file."""
    if config.generation is not Generation.V0:
        return []
    return [
        Piped.PlatformProvider(name=target.name, type=kind.provider_type)
        for plugin in config.spec.plugins
        if (kind := catalog.v0_kind_of_plugin(plugin.name)) is not None
        for target in plugin.deploy_targets
    ]


@dataclass(kw_only=True)
class Presence:
    """Introduces this piped once and then reports that it is alive."""

    api: ControlPlaneClient
    meta: ReportPipedMetaRequest
    metrics: Callable[[], bytes]
    on_reported: Callable[[], None] = lambda: None
    """Called when the metrics have arrived."""
    # The control plane takes a piped without a report for gone, so this does not slow down.
    pace: Pace = field(default_factory=lambda: Pace(_EVERY, net=(_EVERY, _EVERY)))

    async def introduce(self) -> ReportPipedMetaResponse:
        """Tells the control plane what this piped is; a refused key ends piped here."""
        answer = await self.api.report_piped_meta(self.meta)
        log.info("control plane knows this piped", name=answer.name)
        return answer

    async def run(self) -> None:
        trouble = Trouble("statistics")
        while True:
            try:
                await self.api.report_stat(ReportStatRequest(piped_stats=self.metrics()))
            except PipecdError as e:
                trouble.met(e)
            else:
                trouble.over()
                self.on_reported()
            await self.pace.wait()
