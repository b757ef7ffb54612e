# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Cloud Run plugin, in both generations."""

from typing import Annotated

from pydantic import Field

from pipecd.sdk.config import (
    ApplicationKind,
    NoOptions,
    PluginConfig,
    PromoteOptions,
    Spec,
    V0Kind,
    V0Stage,
    must_be_set,
    plain,
)


class CloudRunInput(Spec):
    """Which Knative service manifest is deployed."""

    service_manifest_file: str = "service.yaml"


class CloudRunApplication(Spec):
    """The section `plugins.cloudrun` of an application."""

    input: CloudRunInput = CloudRunInput()
    quick_sync: NoOptions = NoOptions()


class CloudRunPromoteOptions(PromoteOptions):
    """CLOUDRUN_PROMOTE: the share of traffic for the new revision."""


class CloudRunTarget(Spec):
    """A project and region of Google Cloud; without a file the default credentials are used.

    `endpoint` replaces the public address of the Cloud Run Admin API, for private ones.
    """

    project: Annotated[str, Field(validate_default=True), must_be_set("project")] = ""
    region: Annotated[str, Field(validate_default=True), must_be_set("region")] = ""
    credentials_file: str = ""
    endpoint: str = ""


class V0CloudRunInput(CloudRunInput):
    """The `input` of a first-generation CloudRunApp."""

    auto_rollback: Annotated[bool, Field(exclude=True)] = True


class V0CloudRunApp(Spec):
    """The fields of a first-generation CloudRunApp beyond the generic ones."""

    input: V0CloudRunInput = V0CloudRunInput()
    quick_sync: NoOptions = NoOptions()


CONFIG = PluginConfig(
    name="cloudrun",
    application=CloudRunApplication,
    stages={"CLOUDRUN_SYNC": NoOptions, "CLOUDRUN_PROMOTE": CloudRunPromoteOptions},
    deploy_target=CloudRunTarget,
    v0=V0Kind(
        kind="CloudRunApp",
        application_kind=ApplicationKind.CLOUDRUN,
        spec=V0CloudRunApp,
        translate=lambda fields, _: {"cloudrun": plain(fields)},
        auto_rollback=lambda fields: fields.input.auto_rollback,
        provider_type="CLOUDRUN",
        rollback_stage="CLOUDRUN_ROLLBACK",
        provider_config=CloudRunTarget,
    ),
    v0_stages={
        "CLOUDRUN_SYNC": V0Stage(NoOptions),
        "CLOUDRUN_PROMOTE": V0Stage(CloudRunPromoteOptions),
    },
)
