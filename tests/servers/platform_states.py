# SPDX-License-Identifier: Apache-2.0
"""Live states of platforms beside Kubernetes, as their plugins report them."""

from collections.abc import Sequence
from typing import Any

from pipecd.plugins.process.desired import (
    DesiredApplication,
    DesiredVariant,
    Listener,
    Program,
)
from pipecd.plugins.process.instance import (
    ApplicationStatus,
    Instance,
    Phase,
    Usage,
    VariantTraffic,
)
from pipecd.plugins.process.livestate import resource_tree as process_tree
from pipecd.plugins.terraform.plan import ResourceChange
from pipecd.plugins.terraform.state import resource_tree as terraform_tree
from pipecd.proto.model.livestate_pb2 import ResourceState
from pipecd.sdk import LiveState, Resource, SyncState, SyncStatus
from pipecd.sdk.serving import live_state_message

NOW = 1767323000

TERRAFORM_STATE: dict[str, Any] = {
    "values": {
        "root_module": {
            "resources": [
                {
                    "address": "aws_s3_bucket.assets",
                    "mode": "managed",
                    "type": "aws_s3_bucket",
                    "provider_name": "registry.terraform.io/hashicorp/aws",
                    "values": {"id": "shop-assets", "arn": "arn:aws:s3:::shop-assets"},
                },
                {
                    "address": "aws_instance.bastion",
                    "mode": "managed",
                    "type": "aws_instance",
                    "provider_name": "registry.terraform.io/hashicorp/aws",
                    "values": {"id": "i-0c0ffee"},
                    "tainted": True,
                },
            ],
            "child_modules": [
                {
                    "address": "module.network",
                    "resources": [
                        {
                            "address": f"module.network.aws_subnet.private[{number}]",
                            "mode": "managed",
                            "type": "aws_subnet",
                            "provider_name": "registry.terraform.io/hashicorp/aws",
                            "values": {"id": f"subnet-{number}"},
                        }
                        for number in range(3)
                    ],
                    "child_modules": [
                        {
                            "address": "module.network.module.dns",
                            "resources": [
                                {
                                    "address": "module.network.module.dns.aws_route53_zone.shop",
                                    "mode": "managed",
                                    "type": "aws_route53_zone",
                                    "provider_name": "registry.terraform.io/hashicorp/aws",
                                    "values": {"id": "Z123"},
                                }
                            ],
                        }
                    ],
                }
            ],
        }
    }
}


def terraform_resources() -> list[ResourceState]:
    """A state with a module in a module, a tainted instance, and a bucket that a plan changes."""
    change = ResourceChange("aws_s3_bucket.assets", ("update",))
    return _reported(terraform_tree(TERRAFORM_STATE, "dev", [change]), "terraform")


def process_resources(canary: Phase = Phase.UNHEALTHY) -> list[ResourceState]:
    """A router, the primary with two processes, and a canary with one in this phase."""
    primary = Program("/var/lib/piped/releases/7f3c91a", "7f3c91ab" * 5, "d1", "bin/web")
    next_one = Program("/var/lib/piped/releases/c0ffee1", "c0ffee12" * 5, "d2", "bin/web")
    desired = DesiredApplication(
        "a1",
        "cart",
        {"primary": DesiredVariant(primary, 2), "canary": DesiredVariant(next_one)},
        listener=Listener("0.0.0.0", 8080),
    )
    instances = [
        _instance("primary", primary, 0, Phase.HEALTHY),
        _instance("primary", primary, 1, Phase.HEALTHY),
        _instance("canary", next_one, 0, canary),
    ]
    status = ApplicationStatus(
        desired,
        tuple(instances),
        routed={"primary": 90, "canary": 10},
        traffic={"primary": VariantTraffic(9000, 3), "canary": VariantTraffic(1000, 120)},
    )
    return _reported(list(process_tree(status, "web-host")), "process")


def _instance(variant: str, program: Program, index: int, phase: Phase) -> Instance:
    return Instance(
        variant,
        program.identity,
        index,
        phase,
        since=NOW - 60,
        commit=program.commit,
        release=program.release,
        pid=4200 + index,
        port=34000 + index,
        started_at=NOW - 600,
        health="" if phase is Phase.HEALTHY else "GET /healthz answered 503",
        usage=Usage(memory=48 * 1024**2, processes=1, cpu=0.12),
    )


def _reported(resources: Sequence[Resource], plugin: str) -> list[ResourceState]:
    state = LiveState(list(resources), SyncState(SyncStatus.SYNCED))
    message = live_state_message(state, plugin=plugin, now=NOW)
    return list(message.application_live_state.resources)
