# SPDX-License-Identifier: Apache-2.0
"""The configuration of the ECS plugin, in both generations."""

from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from pipecd.sdk.aws import AwsTarget
from pipecd.sdk.config import (
    ApplicationKind,
    NoOptions,
    Percentage,
    PluginConfig,
    Section,
    Spec,
    V0Kind,
    V0Stage,
    plain,
)


def _parse_percentage(value: object) -> object:
    # Upstream's plugin reads plain numbers only; this one also reads `50%`.
    return int(Percentage.parse(value)) if isinstance(value, str) else value


class EcsCanaryRolloutOptions(Spec):
    """ECS_CANARY_ROLLOUT: the share of the desired tasks that the canary runs."""

    scale: Annotated[float, BeforeValidator(_parse_percentage), Field(ge=0, le=100)] = 0


class EcsTrafficRoutingOptions(Spec):
    """ECS_TRAFFIC_ROUTING: the share of one variant, the other gets the rest."""

    primary: Annotated[int, BeforeValidator(_parse_percentage)] = 0
    canary: Annotated[int, BeforeValidator(_parse_percentage)] = 0

    def shares(self) -> tuple[int, int]:
        """Returns the percentages of primary and canary."""
        if 0 < self.primary <= 100:
            return self.primary, 100 - self.primary
        if 0 < self.canary <= 100:
            return 100 - self.canary, self.canary
        return 100, 0


class V0SyncOptions(Spec):
    """ECS_SYNC of the first generation; `quickSync.recreate` decides, this is not used."""

    recreate: bool = False


class V0CanaryRolloutOptions(Spec):
    """ECS_CANARY_ROLLOUT of the first generation."""

    scale: Percentage = Percentage(0)


class V0TrafficRoutingOptions(Spec):
    """ECS_TRAFFIC_ROUTING of the first generation."""

    primary: Percentage = Percentage(0)
    canary: Percentage = Percentage(0)


def plain_scale(options: V0CanaryRolloutOptions) -> Section:
    """Returns the options of the canary as the plugin reads them."""
    return {"scale": int(options.scale)}


def plain_shares(options: V0TrafficRoutingOptions) -> Section:
    """Returns the options of traffic routing as the plugin reads them."""
    return {"primary": int(options.primary), "canary": int(options.canary)}


ACCESS_TYPES = ("ELB", "SERVICE_DISCOVERY")


class VpcConfiguration(Spec):
    """The network of a standalone task."""

    subnets: tuple[str, ...] = ()
    assign_public_ip: str = ""
    security_groups: tuple[str, ...] = ()


class TargetGroup(Spec):
    """A target group of the load balancer and the container behind it."""

    target_group_arn: str = ""
    container_name: str = ""
    container_port: int = 0
    load_balancer_name: str = ""


class TargetGroups(Spec):
    """The target groups that receive the traffic of each variant."""

    primary: TargetGroup | None = None
    canary: TargetGroup | None = None


class TaskInput(Spec):
    """The definitions of a service, or of a standalone task if no service is set."""

    task_definition_file: str = "taskdef.json"
    service_definition_file: str = ""
    cluster_arn: str = ""
    launch_type: str = "FARGATE"
    awsvpc_configuration: VpcConfiguration = VpcConfiguration()
    access_type: str = "ELB"
    target_groups: TargetGroups = TargetGroups()

    @field_validator("access_type")
    @classmethod
    def _is_access_type(cls, value: str) -> str:
        if value not in ACCESS_TYPES:
            raise ValueError(f"invalid accessType: {value}, write {' or '.join(ACCESS_TYPES)}")
        return value


class EcsInput(TaskInput):
    """The `input` of the section; a standalone task runs only with `runStandaloneTask`."""

    run_standalone_task: bool = False


class QuickSync(Spec):
    """Quick sync; `recreate` stops every task before the new ones start."""

    recreate: bool = False


class EcsApplication(Spec):
    """The section `plugins.ecs` of an application."""

    input: EcsInput = EcsInput()
    quick_sync: QuickSync = QuickSync()


class V0EcsInput(TaskInput):
    """The `input` of a first-generation ECSApp, where a standalone task runs by default."""

    run_standalone_task: bool = True
    auto_rollback: Annotated[bool, Field(exclude=True)] = True


class V0EcsApp(Spec):
    """The fields of a first-generation ECSApp beyond the generic ones."""

    input: V0EcsInput = V0EcsInput()
    quick_sync: QuickSync = QuickSync()


CONFIG = PluginConfig(
    name="ecs",
    application=EcsApplication,
    stages={
        "ECS_SYNC": NoOptions,
        "ECS_CANARY_ROLLOUT": EcsCanaryRolloutOptions,
        "ECS_PRIMARY_ROLLOUT": NoOptions,
        "ECS_TRAFFIC_ROUTING": EcsTrafficRoutingOptions,
        "ECS_CANARY_CLEAN": NoOptions,
    },
    deploy_target=AwsTarget,
    v0=V0Kind(
        kind="ECSApp",
        application_kind=ApplicationKind.ECS,
        spec=V0EcsApp,
        translate=lambda fields, _: {"ecs": plain(fields)},
        auto_rollback=lambda fields: fields.input.auto_rollback,
        rollback_stage="ECS_ROLLBACK",
        provider_type="ECS",
        provider_config=AwsTarget,
    ),
    v0_stages={
        "ECS_SYNC": V0Stage(V0SyncOptions, translate=lambda _: {}),
        "ECS_CANARY_ROLLOUT": V0Stage(V0CanaryRolloutOptions, translate=plain_scale),
        "ECS_PRIMARY_ROLLOUT": V0Stage(NoOptions),
        "ECS_TRAFFIC_ROUTING": V0Stage(V0TrafficRoutingOptions, translate=plain_shares),
        "ECS_CANARY_CLEAN": V0Stage(NoOptions),
    },
)
