# SPDX-License-Identifier: Apache-2.0
"""The configuration of the ECS plugin, in both generations."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipecd.plugins.ecs.application import EcsApplication, V0EcsApp
from pipecd.plugins.ecs.options import (
    CanaryRolloutOptions,
    TrafficRoutingOptions,
    V0CanaryRolloutOptions,
    V0SyncOptions,
    V0TrafficRoutingOptions,
    plain_scale,
    plain_shares,
)
from pipecd.sdk.config import (
    ApplicationKind,
    NoOptions,
    PluginConfig,
    Section,
    Spec,
    V0Kind,
    V0Stage,
    must_be_set,
    plain,
)


class EcsTarget(Spec):
    """An AWS account and region; without credentials the default chain of AWS is used."""

    region: Annotated[str, Field(validate_default=True), must_be_set("region")] = ""
    profile: str = ""
    credentials_file: str = ""
    role_arn: Annotated[str, Field(alias="roleARN")] = ""
    token_file: str = ""


def _sections(fields: V0EcsApp, stages: frozenset[str]) -> Mapping[str, Section]:
    section = plain(fields)
    del section["input"]["autoRollback"]
    return {"ecs": section}


CONFIG = PluginConfig(
    name="ecs",
    application=EcsApplication,
    stages={
        "ECS_SYNC": NoOptions,
        "ECS_CANARY_ROLLOUT": CanaryRolloutOptions,
        "ECS_PRIMARY_ROLLOUT": NoOptions,
        "ECS_TRAFFIC_ROUTING": TrafficRoutingOptions,
        "ECS_CANARY_CLEAN": NoOptions,
    },
    deploy_target=EcsTarget,
    v0=V0Kind(
        kind="ECSApp",
        application_kind=ApplicationKind.ECS,
        spec=V0EcsApp,
        translate=_sections,
        auto_rollback=lambda fields: fields.input.auto_rollback,
        provider_type="ECS",
        provider_config=EcsTarget,
    ),
    v0_stages={
        "ECS_SYNC": V0Stage(V0SyncOptions, translate=lambda _: {}),
        "ECS_CANARY_ROLLOUT": V0Stage(V0CanaryRolloutOptions, translate=plain_scale),
        "ECS_PRIMARY_ROLLOUT": V0Stage(NoOptions),
        "ECS_TRAFFIC_ROUTING": V0Stage(V0TrafficRoutingOptions, translate=plain_shares),
        "ECS_CANARY_CLEAN": V0Stage(NoOptions),
    },
)
