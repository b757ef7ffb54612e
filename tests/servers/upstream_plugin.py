# SPDX-License-Identifier: Apache-2.0
"""A plugin of upstream as a process, whose stages are run one by one."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from pipecd.config.application import ApplicationSpec
from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.model.deployment import StageStatus
from pipecd.piped.pluginhost.host import PluginHost
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.sdk.testing import MemoryHost, StageBench

RunStage: TypeAlias = Callable[[StageBench, str, dict[str, Any], int], Awaitable[None]]


@asynccontextmanager
async def upstream_plugin(
    program: Path,
    workspace: Path,
    target: DeployTargetSpec,
    tools: Mapping[str, Path] | None = None,
) -> AsyncGenerator[RunStage, None]:
    """Starts the plugin with one deploy target; a stage must succeed."""
    host: Any = MemoryHost()
    host.masks = SecretMasks()
    host.tools.update(tools or {})
    spec = PluginSpec(name=program.name, url=f"file://{program}", deploy_targets=(target,))
    async with PluginHost.start([spec], callbacks=host, workspace=workspace) as plugins:

        async def run(bench: StageBench, name: str, options: dict[str, Any], index: int) -> None:
            host.stage_metadata.clear()
            host.is_log_completed = False
            sample = bench._sample
            is_rollback = name.endswith("_ROLLBACK")
            running = bench.running._sample.source() if bench.running else None
            answer = await plugins.for_stage(name, ApplicationSpec()).ExecuteStage(
                pb.ExecuteStageRequest(
                    input=pb.ExecutePluginInput(
                        deployment=bench.deployment(),
                        stage=sample.stage(name, index=index, is_rollback=is_rollback),
                        stage_config=json.dumps(options).encode(),
                        target_deployment_source=sample.source(),
                        running_deployment_source=running,
                    )
                )
            )
            assert StageStatus(answer.status) is StageStatus.SUCCESS, host.lines[-3:]

        yield run
