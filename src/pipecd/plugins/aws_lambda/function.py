# SPDX-License-Identifier: Apache-2.0
"""The manifest of a Lambda function."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from pipecd.sdk.config import Spec, refuse

ARCHITECTURES = ("x86_64", "arm64")


class Source(Spec):
    """Code that is packed from a Git repository."""

    git: str = ""
    ref: str = ""
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

    The code is a container image, else an object in S3, else what is packed from Git.
    """

    name: str = ""
    role: str = ""
    image: str = ""
    s3_bucket: str = ""
    s3_key: str = ""
    s3_object_version: str = ""
    source: Source = Source()
    handler: str = ""
    runtime: str = ""
    architectures: tuple[Architecture, ...] = ()
    ephemeral_storage: EphemeralStorage | None = None
    memory: int = 0
    timeout: int = 0
    tags: Mapping[str, str] = Field(default_factory=dict[str, str])
    environments: Mapping[str, str] = Field(default_factory=dict[str, str])
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
