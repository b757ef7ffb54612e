# SPDX-License-Identifier: Apache-2.0
"""How piped decrypts the secrets in application files."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from pipecd.config.rule import Rule, refuse
from pipecd.config.spec import Spec

KEY_PAIR = "KEY_PAIR"
GCP_KMS = "GCP_KMS"


class SecretManagementConfig(Spec):
    """The keys of one type of secret management; which ones count is decided by the type."""

    private_key_file: str = ""
    private_key_data: Annotated[str, Field(repr=False)] = ""
    public_key_file: str = ""
    public_key_data: str = ""
    key_name: str = ""
    decrypt_service_account_file: str = ""
    encrypt_service_account_file: str = ""


class SecretManagementSpec(Spec):
    """How the secrets in application files are decrypted."""

    type: str = Field(default="", validate_default=True)
    config: SecretManagementConfig = SecretManagementConfig()

    @field_validator("type")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in (KEY_PAIR, GCP_KMS):
            raise ValueError(f"unsupported secret management type: {value}, write {KEY_PAIR}")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        c = self.config
        if self.type == KEY_PAIR:
            refuse(
                self,
                *_one_of("privateKeyFile", c.private_key_file, c.private_key_data),
                *_one_of("publicKeyFile", c.public_key_file, c.public_key_data),
            )
        else:
            needed = {
                "keyName": c.key_name,
                "decryptServiceAccountFile": c.decrypt_service_account_file,
                "encryptServiceAccountFile": c.encrypt_service_account_file,
            }
            refuse(self, *((not v, ("config", k), f"{k} must be set") for k, v in needed.items()))
        return self


def _one_of(key: str, file: str, data: str) -> list[Rule]:
    other = key.removesuffix("File") + "Data"
    return [
        (not file and not data, "config", f"either {key} or {other} must be set"),
        (file and data, ("config", other), f"only {key} or {other} can be set"),
    ]
