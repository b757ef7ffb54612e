# SPDX-License-Identifier: Apache-2.0
"""How a plugin program is started and found, by the flags that upstream's piped passes."""

import asyncio
import json
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pipecd.config.piped import PluginSpec
from pipecd.proto.plugin.deployment_pb2 import FetchDefinedStagesRequest
from pipecd.proto.plugin.deployment_pb2_grpc import DeploymentServiceStub

# Far more than any answer needs, and little enough for the memory of piped.
LARGEST_ANSWER = 64 << 20
_ON_LOOPBACK = (
    ("grpc.max_receive_message_length", LARGEST_ANSWER),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
_Health = health_pb2.HealthCheckResponse


def start_arguments(spec: PluginSpec, *, service_port: int) -> list[str]:
    """What is added to the command of a plugin, for a piped at a port of this machine."""
    piped = f"localhost:{service_port}"
    return ["start", "--piped-plugin-service", piped, "--config", entry_json(spec)]


def entry_json(spec: PluginSpec) -> str:
    """The JSON of the plugin's entry, in upstream's shape."""
    entry: dict[str, object] = {"name": spec.name, "url": spec.url, "port": spec.port}
    if spec.config:
        entry["config"] = spec.config
    if spec.deploy_targets:
        entry["deployTargets"] = [
            {"name": t.name, **({"labels": t.labels} if t.labels else {}), "config": t.config}
            for t in spec.deploy_targets
        ]
    return json.dumps(entry)


def loopback_channel(port: int) -> grpc.aio.Channel:
    """A channel to a plugin on this machine."""
    return grpc.aio.insecure_channel(f"localhost:{port}", options=_ON_LOOPBACK)


async def answers(channel: grpc.aio.Channel, within: float) -> bool:
    """Whether the health service says so or, where there is none, the list of stages comes."""
    try:
        await asyncio.wait_for(channel.channel_ready(), within)
        health: Any = health_pb2_grpc.HealthStub(channel)
        checked: _Health = await health.Check(health_pb2.HealthCheckRequest(), timeout=within)
    except TimeoutError:
        return False
    except grpc.aio.AioRpcError as e:
        if e.code() is not grpc.StatusCode.UNIMPLEMENTED:
            return False
    else:
        return checked.status == _Health.SERVING
    try:
        request = FetchDefinedStagesRequest()
        await DeploymentServiceStub(channel).FetchDefinedStages(request, timeout=within)
    except grpc.aio.AioRpcError as e:
        # Whoever only tells what is live has no stages.
        return e.code() is grpc.StatusCode.UNIMPLEMENTED
    return True
