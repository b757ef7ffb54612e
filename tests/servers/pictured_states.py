# SPDX-License-Identifier: Apache-2.0
"""Deployments of the pictured project that only some pictures need: long logs, long pipelines."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.log_file import LogFile, format_log
from pipecd.controlplane.datastore.stage_logs import StageRun, log_path
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.logblock_pb2 import ERROR, INFO, SUCCESS, LogBlock
from servers.pictured_applications import MINUTE
from servers.pictured_project import PictureProject

LONG_LOG_LINES = 100_000
STAGES = (
    ("K8S_CANARY_ROLLOUT", "Start 5 % as canary", 48),
    ("ANALYSIS", "", 600),
    ("K8S_TRAFFIC_ROUTING", "Route 5 % to the canary", 4),
    ("WAIT", "", 300),
    ("ANALYSIS", "", 600),
    ("K8S_TRAFFIC_ROUTING", "Route 25 % to the canary", 4),
    ("WAIT", "", 300),
    ("SCRIPT_RUN", "Smoke tests of the checkout", 71),
    ("WAIT_APPROVAL", "", 900),
    ("K8S_TRAFFIC_ROUTING", "Route 100 % to the canary", 4),
    ("K8S_PRIMARY_ROLLOUT", "", 94),
    ("K8S_CANARY_CLEAN", "", 12),
)
_RUNNING = 9


async def add_long_pipeline(project: PictureProject) -> str:
    """A deployment whose tenth of twelve stages runs, with a rollback stage."""
    deployment = _deployment(project, 55 * MINUTE)
    at = deployment.created_at + 5
    for number, (name, description, seconds) in enumerate(STAGES):
        stage = _stage(deployment, f"s{number}", name, at)
        stage.desc, stage.index = description, number
        if number:
            stage.requires.append(f"s{number - 1}")
        if number < _RUNNING:
            at += seconds
            stage.status, stage.completed_at = pb.STAGE_SUCCESS, at
        elif number == _RUNNING:
            stage.status, stage.completed_at = pb.STAGE_RUNNING, at
    _stage(deployment, "rollback", "K8S_ROLLBACK", at).rollback = True
    await project.stores.deployments.add(deployment)
    return deployment.id


async def add_running_log(project: PictureProject) -> str:
    """A deployment whose only stage runs and has not written anything yet."""
    deployment = _deployment(project, 2 * MINUTE)
    stage = _stage(deployment, "s1", "SCRIPT_RUN", project.time - MINUTE)
    stage.desc, stage.status = "Migrate the orders", pb.STAGE_RUNNING
    stage.completed_at = project.time - MINUTE
    await project.stores.deployments.add(deployment)
    return deployment.id


async def write_line(project: PictureProject, deployment: str, number: int) -> None:
    text = f"\x1b[36mbatch {number + 1} of 400\x1b[0m: 250 orders migrated in {40 + number} ms"
    block = LogBlock(index=number, log=text, created_at=project.time - 40 + number, severity=INFO)
    by = PipedCaller(project.admin.project, project.pipeds["tokyo"].piped)
    await project.cases.logs.append(StageRun(deployment, "s1"), [block], by=by)


async def add_long_log(project: PictureProject) -> str:
    """A deployment that has ended after its stage had written a long log."""
    deployment = _deployment(project, 40 * MINUTE)
    deployment.status = pb.DEPLOYMENT_SUCCESS
    deployment.completed_at = deployment.created_at + 1400
    stage = _stage(deployment, "s1", "SCRIPT_RUN", deployment.created_at + 5)
    stage.desc, stage.status = "Migrate the orders", pb.STAGE_SUCCESS
    stage.completed_at = deployment.completed_at - 2
    await project.stores.deployments.add(deployment)
    blocks = [_line(deployment.created_at + 5 + n // 75, n) for n in range(1, LONG_LOG_LINES)]
    done = LogBlock(
        index=LONG_LOG_LINES,
        log="All orders are migrated",
        severity=SUCCESS,
        created_at=stage.completed_at,
    )
    content = format_log(LogFile((*blocks, done), completed=True))
    await project.stores.files.put(log_path(StageRun(deployment.id, "s1")), content)
    return deployment.id


def _line(at: int, number: int) -> LogBlock:
    text = f"\x1b[36mbatch {number}\x1b[0m of 100000: 250 orders, see https://wiki.example/{number}"
    is_slow = number % 1000 == 17
    if is_slow:
        text = f"batch {number} took too long: 31.4 s, trying its 250 orders one by one"
    return LogBlock(index=number, log=text, severity=ERROR if is_slow else INFO, created_at=at)


def _deployment(project: PictureProject, ago: int) -> Deployment:
    """A running deployment without stages, of an application that has others."""
    deployment = Deployment()
    deployment.CopyFrom(project.latest["checkout"])
    deployment.id = f"{deployment.id[:-12]}{ago:012}"
    deployment.created_at = deployment.updated_at = project.time - ago
    deployment.trigger.timestamp = deployment.created_at
    deployment.status, deployment.status_reason = pb.DEPLOYMENT_RUNNING, ""
    deployment.completed_at = 0
    deployment.deployment_trace_commit_hash = ""
    del deployment.stages[:]
    return deployment


def _stage(deployment: Deployment, id: str, name: str, at: int) -> PipelineStage:
    stage = PipelineStage(id=id, name=name, visible=True, created_at=at, updated_at=at)
    deployment.stages.append(stage)
    return deployment.stages[-1]
