# SPDX-License-Identifier: Apache-2.0
"""Secrets and files that are put into the sources before a deployment reads them."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from pipecd.config.rule import refuse
from pipecd.config.spec import Spec


class EncryptionSpec(Spec):
    """Encrypted values, and the files in which `.encryptedSecrets.NAME` is replaced by them."""

    encrypted_secrets: Mapping[str, str] = Field(default_factory=dict[str, str])
    decryption_targets: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        key = "encryptedSecrets"
        refuse(
            self,
            ("" in self.encrypted_secrets, key, "a name must not be empty"),
            *(
                (name and not value, (key, name), "the value must not be empty")
                for name, value in self.encrypted_secrets.items()
            ),
            (
                not self.decryption_targets,
                "decryptionTargets",
                "must not be empty, list the files that use the secrets",
            ),
        )
        return self


class AttachmentSpec(Spec):
    """Files by name, and the files in which `.attachment.NAME` is replaced by their content."""

    sources: Mapping[str, str] = Field(default_factory=dict[str, str])
    targets: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        refuse(
            self,
            ("" in self.sources, "sources", "a name must not be empty"),
            *(
                (name and not path, ("sources", name), "the file name must not be empty")
                for name, path in self.sources.items()
            ),
            (
                not self.targets,
                "targets",
                "must not be empty, list the files that use the attachments",
            ),
        )
        return self
