# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Lambda plugin, in both generations."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, field_validator

from pipecd.plugins.aws_lambda.function import LambdaFunction
from pipecd.sdk.config import (
    ApplicationKind,
    Duration,
    NoOptions,
    Percentage,
    PluginConfig,
    Section,
    Spec,
    V0Kind,
    V0Stage,
    must_be_set,
    plain,
)


class LambdaInput(Spec):
    """Which function manifest is deployed."""

    function_manifest_file: str = "function.yaml"


class LambdaApplication(Spec):
    """The section `plugins.lambda` of an application."""

    input: LambdaInput = LambdaInput()
    quick_sync: NoOptions = NoOptions()


class PromoteOptions(Spec):
    """LAMBDA_PROMOTE: the share of traffic for the new version."""

    percent: Percentage = Percentage(0)


class LambdaTarget(Spec):
    """An AWS account and region; without credentials the default chain of AWS is used."""

    region: Annotated[str, Field(validate_default=True), must_be_set("region")] = ""
    profile: str = ""
    credentials_file: str = ""
    role_arn: Annotated[str, Field(alias="roleARN")] = ""
    token_file: str = ""
    aws_api_polling_interval: Annotated[Duration, Field(alias="awsAPIPollingInterval")] = Duration(
        15
    )

    @field_validator("aws_api_polling_interval")
    @classmethod
    def _not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("must be greater than or equal to 0")
        return value


class V0LambdaInput(LambdaInput):
    """The `input` of a first-generation LambdaApp."""

    auto_rollback: bool = True


class V0LambdaApp(Spec):
    """The fields of a first-generation LambdaApp beyond the generic ones."""

    input: V0LambdaInput = V0LambdaInput()
    quick_sync: NoOptions = NoOptions()


def _sections(fields: V0LambdaApp, stages: frozenset[str]) -> Mapping[str, Section]:
    section = plain(fields)
    del section["input"]["autoRollback"]
    return {"lambda": section}


CONFIG = PluginConfig(
    name="lambda",
    application=LambdaApplication,
    stages={
        "LAMBDA_SYNC": NoOptions,
        "LAMBDA_CANARY_ROLLOUT": NoOptions,
        "LAMBDA_PROMOTE": PromoteOptions,
    },
    deploy_target=LambdaTarget,
    kinds={"LambdaFunction": LambdaFunction},
    v0=V0Kind(
        kind="LambdaApp",
        application_kind=ApplicationKind.LAMBDA,
        spec=V0LambdaApp,
        translate=_sections,
        auto_rollback=lambda fields: fields.input.auto_rollback,
        provider_type="LAMBDA",
        provider_config=LambdaTarget,
    ),
    v0_stages={
        "LAMBDA_SYNC": V0Stage(NoOptions),
        "LAMBDA_CANARY_ROLLOUT": V0Stage(NoOptions),
        "LAMBDA_PROMOTE": V0Stage(PromoteOptions),
    },
)
