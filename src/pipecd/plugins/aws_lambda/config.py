# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Lambda plugin, in both generations, and the kind LambdaFunction."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pipecd.sdk.aws import AwsTarget
from pipecd.sdk.config import (
    ApplicationKind,
    Duration,
    NoOptions,
    PluginConfig,
    PromoteOptions,
    Spec,
    V0Kind,
    V0Stage,
    plain,
    refuse,
)
from pipecd.sdk.diff import scalar_text

ARCHITECTURES = ("x86_64", "arm64")


def _to_text(value: object) -> object:
    # Upstream reads `ref: 1234567` and `DEBUG: true` as texts too.
    return scalar_text(value) if isinstance(value, int | float) else value


Text = Annotated[str, BeforeValidator(_to_text)]


class CodeSource(Spec):
    """Code that is packed from a Git repository."""

    git: str = ""
    ref: Text = ""
    path: str = ""


class Architecture(Spec):
    """An instruction set."""

    name: str = ""


class EphemeralStorage(Spec):
    """The size of `/tmp` in megabytes."""

    size: int = 0


class VpcConfig(Spec):
    """The network of a function."""

    security_group_ids: tuple[str, ...] = ()
    subnet_ids: tuple[str, ...] = ()


class LambdaFunction(Spec):
    """The `spec` of the kind LambdaFunction.

    The code is a container image, else an object in S3, else packed from a Git repository.
    """

    name: str = ""
    role: str = ""
    image: str = ""
    s3_bucket: str = ""
    s3_key: Text = ""
    s3_object_version: Text = ""
    source: CodeSource = CodeSource()
    handler: str = ""
    runtime: str = ""
    architectures: tuple[Architecture, ...] = ()
    ephemeral_storage: EphemeralStorage | None = None
    memory: int = 0
    timeout: int = 0
    tags: Mapping[str, Text] = Field(default_factory=dict[str, str])
    environments: Mapping[str, Text] = Field(default_factory=dict[str, str])
    vpc_config: VpcConfig | None = None
    layers: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        from_git = not self.image and not self.s3_bucket
        storage = self.ephemeral_storage
        refuse(
            self,
            (not self.name, "name", "lambda function is missing"),
            (not self.role, "role", "role is missing"),
            (self.memory < 1, "memory", "memory is missing"),
            (not 1 <= self.timeout <= 900, "timeout", "timeout is missing or out of range"),
            (from_git and not self.source.git, ("source", "git"), "remote git source is missing"),
            (from_git and not self.source.ref, ("source", "ref"), "source ref is missing"),
            (not self.image and not self.handler, "handler", "handler is missing"),
            (not self.image and not self.runtime, "runtime", "runtime is missing"),
            *(
                (
                    architecture.name not in ARCHITECTURES,
                    ("architectures", i, "name"),
                    f"architecture is invalid, write {' or '.join(ARCHITECTURES)}",
                )
                for i, architecture in enumerate(self.architectures)
            ),
            (
                storage is not None and not 512 <= storage.size <= 10240,
                ("ephemeralStorage", "size"),
                "ephemeral storage is out of range, write 512 to 10240",
            ),
        )
        return self


class LambdaInput(Spec):
    """Which function manifest is deployed."""

    function_manifest_file: str = "function.yaml"


class LambdaApplication(Spec):
    """The section `plugins.lambda` of an application."""

    input: LambdaInput = LambdaInput()
    quick_sync: NoOptions = NoOptions()


class LambdaPromoteOptions(PromoteOptions):
    """LAMBDA_PROMOTE: the share of traffic for the new version."""


class LambdaTarget(AwsTarget):
    """An AWS account and region, and how often it is asked for the state of functions."""

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

    auto_rollback: Annotated[bool, Field(exclude=True)] = True


class V0LambdaApp(Spec):
    """The fields of a first-generation LambdaApp beyond the generic ones."""

    input: V0LambdaInput = V0LambdaInput()
    quick_sync: NoOptions = NoOptions()


CONFIG = PluginConfig(
    name="lambda",
    application=LambdaApplication,
    stages={
        "LAMBDA_SYNC": NoOptions,
        "LAMBDA_CANARY_ROLLOUT": NoOptions,
        "LAMBDA_PROMOTE": LambdaPromoteOptions,
    },
    deploy_target=LambdaTarget,
    kinds={"LambdaFunction": LambdaFunction},
    v0=V0Kind(
        kind="LambdaApp",
        application_kind=ApplicationKind.LAMBDA,
        spec=V0LambdaApp,
        translate=lambda fields, _: {"lambda": plain(fields)},
        auto_rollback=lambda fields: fields.input.auto_rollback,
        provider_type="LAMBDA",
        rollback_stage="LAMBDA_ROLLBACK",
        provider_config=LambdaTarget,
    ),
    v0_stages={
        "LAMBDA_SYNC": V0Stage(NoOptions),
        "LAMBDA_CANARY_ROLLOUT": V0Stage(NoOptions),
        "LAMBDA_PROMOTE": V0Stage(LambdaPromoteOptions),
    },
)
