# SPDX-License-Identifier: Apache-2.0
"""Where measurements come from."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from pipecd.sdk.config import Spec, refuse

PROMETHEUS = "PROMETHEUS"
DATADOG = "DATADOG"
STACKDRIVER = "STACKDRIVER"
PROVIDER_TYPES = (PROMETHEUS, DATADOG, STACKDRIVER)
DATADOG_SITE = "datadoghq.com"


class ProviderConfig(Spec):
    """The settings of one provider; which ones count is decided by its type."""

    address: str = ""
    username_file: str = ""
    password_file: str = ""
    api_key_file: str = ""
    api_key_data: Annotated[str, Field(repr=False)] = ""
    application_key_file: str = ""
    application_key_data: Annotated[str, Field(repr=False)] = ""
    service_account_file: str = ""


class AnalysisProvider(Spec):
    """One provider, named by the stages that ask it."""

    name: str = ""
    type: str = Field(default="", validate_default=True)
    config: ProviderConfig = ProviderConfig()

    @field_validator("type")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in PROVIDER_TYPES:
            raise ValueError(
                f"unsupported analysis provider type: {value}, "
                f"write one of {', '.join(PROVIDER_TYPES)}"
            )
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        c = self.config
        datadog = self.type == DATADOG
        refuse(
            self,
            (
                self.type == PROMETHEUS and not c.address,
                ("config", "address"),
                "prometheus analysis provider requires the address",
            ),
            (
                datadog and not c.api_key_file and not c.api_key_data,
                "config",
                "either datadog APIKeyFile or APIKeyData must be set",
            ),
            (
                datadog and not c.application_key_file and not c.application_key_data,
                "config",
                "either datadog ApplicationKeyFile or ApplicationKeyData must be set",
            ),
            (
                datadog and c.api_key_file and c.api_key_data,
                "config",
                "only datadog APIKeyFile or APIKeyData can be set",
            ),
            (
                datadog and c.application_key_file and c.application_key_data,
                "config",
                "only datadog ApplicationKeyFile or ApplicationKeyData can be set",
            ),
        )
        return self

    @property
    def address(self) -> str:
        """Return the address to ask; Datadog has a site of its own by default."""
        return self.config.address or (DATADOG_SITE if self.type == DATADOG else "")


class AnalysisSettings(Spec):
    """The `config` of the analysis plugin in a piped file."""

    analysis_providers: tuple[AnalysisProvider, ...] = ()
