# SPDX-License-Identifier: Apache-2.0
"""How piped decrypts the secrets in application files."""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from pipecd.config.rule import Rule, refuse
from pipecd.config.spec import Spec

KEY_PAIR = "KEY_PAIR"
GCP_KMS = "GCP_KMS"
AWS_KMS = "AWS_KMS"
_TYPES = (KEY_PAIR, GCP_KMS, AWS_KMS)


class PreviousKeySpec(Spec):
    """A key that was used before: its private half, or its name in the key service."""

    private_key_file: str = ""
    private_key_data: Annotated[str, Field(repr=False)] = ""
    key_name: str = ""


class SecretManagementConfig(Spec):
    """The keys of one type of secret management; which ones count is decided by the type."""

    private_key_file: str = ""
    private_key_data: Annotated[str, Field(repr=False)] = ""
    public_key_file: str = ""
    public_key_data: str = ""
    key_name: str = ""
    decrypt_service_account_file: str = ""
    encrypt_service_account_file: str = ""
    region: str = ""
    previous_keys: tuple[PreviousKeySpec, ...] = ()


class SecretManagementSpec(Spec):
    """How the secrets in application files are decrypted."""

    type: str = Field(default="", validate_default=True)
    config: SecretManagementConfig = SecretManagementConfig()

    @field_validator("type")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in _TYPES:
            raise ValueError(
                f"unsupported secret management type: {value}, write {' or '.join(_TYPES)}"
            )
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        c = self.config
        if self.type == KEY_PAIR:
            refuse(
                self,
                *_one_of("privateKeyFile", c.private_key_file, c.private_key_data),
                *_one_of("publicKeyFile", c.public_key_file, c.public_key_data),
                *self._previous_keys(),
            )
        else:
            refuse(
                self,
                (not c.key_name, ("config", "keyName"), "keyName must be set"),
                *self._previous_keys(),
            )
        return self

    def _previous_keys(self) -> Iterator[Rule]:
        for index, key in enumerate(self.config.previous_keys):
            place = ("config", "previousKeys", index)
            given = [key.private_key_file, key.private_key_data, key.key_name]
            what = "exactly one of privateKeyFile, privateKeyData and keyName must be set"
            yield len([each for each in given if each]) != 1, place, what
            is_misplaced = key.key_name and self.type == KEY_PAIR
            yield is_misplaced, (*place, "keyName"), f"is for {GCP_KMS} and {AWS_KMS} only"


def _one_of(key: str, file: str, data: str) -> list[Rule]:
    other = key.removesuffix("File") + "Data"
    return [
        (not file and not data, "config", f"either {key} or {other} must be set"),
        (file and data, ("config", other), f"only {key} or {other} can be set"),
    ]
