# SPDX-License-Identifier: Apache-2.0
"""The configuration of one piped, in the form the engine works with and in that of v0 files."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from pipecd.config.duration import Duration
from pipecd.config.piped.git import GitSpec, RepositorySpec
from pipecd.config.piped.notification import NotificationsSpec
from pipecd.config.piped.plugin import PluginSpec
from pipecd.config.piped.secret import SecretManagementSpec
from pipecd.config.piped.watcher import EventWatcherSpec, PlanPreviewSpec
from pipecd.config.rule import must_be_set, refuse
from pipecd.config.spec import Spec


class IdentitySpec(Spec):
    """Who a piped is and whom it talks to; all that a launcher reads."""

    project_id: Annotated[
        str, Field(alias="projectID", validate_default=True), must_be_set("projectID")
    ] = ""
    piped_id: Annotated[
        str, Field(alias="pipedID", validate_default=True), must_be_set("pipedID")
    ] = ""
    piped_key_file: str = ""
    piped_key_data: Annotated[str, Field(repr=False)] = ""
    api_address: Annotated[str, Field(validate_default=True), must_be_set("apiAddress")] = ""

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        refuse(
            self,
            (
                not self.piped_key_file and not self.piped_key_data,
                "",
                "either pipedKeyFile or pipedKeyData must be set",
            ),
            (
                self.piped_key_file and self.piped_key_data,
                "pipedKeyData",
                "only pipedKeyFile or pipedKeyData can be set",
            ),
        )
        return self


class AgentSpec(IdentitySpec):
    """What piped files of both generations say alike."""

    name: str = ""
    web_address: str = ""
    sync_interval: Duration = Duration(60)
    app_config_sync_interval: Duration = Duration(60)
    git: GitSpec = GitSpec()
    repositories: tuple[RepositorySpec, ...] = ()
    notifications: NotificationsSpec = NotificationsSpec()
    secret_management: SecretManagementSpec | None = None
    event_watcher: EventWatcherSpec = EventWatcherSpec()
    plan_preview: PlanPreviewSpec = PlanPreviewSpec()
    app_selector: Mapping[str, str] = Field(default_factory=dict[str, str])

    @field_validator("sync_interval")
    @classmethod
    def _sync_not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("syncInterval must be greater than or equal to 0")
        return value

    @field_validator("app_config_sync_interval")
    @classmethod
    def _app_config_sync_not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("appConfigSyncInterval must be greater than or equal to 0")
        return value


class PipedSpec(AgentSpec):
    """Everything a piped is told; what it deploys to is told by its plugins."""

    plugins: tuple[PluginSpec, ...] = ()

    @model_validator(mode="after")
    def _plugins_differ(self) -> Self:
        names = [plugin.name for plugin in self.plugins]
        refuse(
            self,
            *(
                (name in names[:i], ("plugins", i, "name"), f"two plugins are named {name}")
                for i, name in enumerate(names)
            ),
        )
        return self


class PlatformProviderSpec(Spec):
    """One platform of a v0 file; its `config` is checked by the plugin that took it over."""

    name: str = ""
    type: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    config: Mapping[str, Any] = Field(default_factory=dict[str, Any])


class V0PipedSpec(AgentSpec):
    """A v0 file as it is written; charts and analysis are checked by the plugins for them."""

    platform_providers: tuple[PlatformProviderSpec, ...] = ()
    cloud_providers: tuple[PlatformProviderSpec, ...] = ()
    analysis_providers: tuple[Mapping[str, Any], ...] = ()
    chart_repositories: tuple[Mapping[str, Any], ...] = ()
    chart_registries: tuple[Mapping[str, Any], ...] = ()
