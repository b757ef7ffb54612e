# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Terraform plugin, in both generations."""

from typing import Annotated

from pydantic import Field

from pipecd.sdk.config import (
    ApplicationKind,
    NoOptions,
    PluginConfig,
    Spec,
    V0Kind,
    V0Stage,
    plain,
)


class CommandTexts(Spec):
    """Additional arguments or variables of Terraform commands; `shared` applies to all of them."""

    shared: tuple[str, ...] = ()
    init: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    apply: tuple[str, ...] = ()


class TerraformApplication(Spec):
    """The section `plugins.terraform` of an application.

    Without a workspace none is selected; without a version the default tool (0.13.0) is used.
    """

    workspace: str = ""
    terraform_version: str = ""
    vars: tuple[str, ...] = ()
    var_files: tuple[str, ...] = ()
    command_flags: CommandTexts = CommandTexts()
    command_envs: CommandTexts = CommandTexts()


class PlanOptions(Spec):
    """TERRAFORM_PLAN; a plan without changes may end the deployment successfully."""

    exit_on_no_changes: bool = False


class TerraformTarget(Spec):
    """What all applications of a target share; its `vars` come before those of the application."""

    vars: tuple[str, ...] = ()
    drift_detection_enabled: bool = True


class V0TerraformInput(TerraformApplication):
    """The `input` of a first-generation TerraformApp, which does not roll back by default."""

    auto_rollback: Annotated[bool, Field(exclude=True)] = False


class V0TerraformApp(Spec):
    """The fields of a first-generation TerraformApp beyond the generic ones."""

    input: V0TerraformInput = V0TerraformInput()
    quick_sync: NoOptions = NoOptions()


CONFIG = PluginConfig(
    name="terraform",
    application=TerraformApplication,
    stages={"TERRAFORM_PLAN": PlanOptions, "TERRAFORM_APPLY": NoOptions},
    deploy_target=TerraformTarget,
    v0=V0Kind(
        kind="TerraformApp",
        application_kind=ApplicationKind.TERRAFORM,
        spec=V0TerraformApp,
        translate=lambda fields, _: {"terraform": plain(fields.input)},
        auto_rollback=lambda fields: fields.input.auto_rollback,
        provider_type="TERRAFORM",
        provider_config=TerraformTarget,
    ),
    v0_stages={
        "TERRAFORM_SYNC": V0Stage(NoOptions, name="TERRAFORM_APPLY"),
        "TERRAFORM_PLAN": V0Stage(PlanOptions),
        "TERRAFORM_APPLY": V0Stage(NoOptions),
    },
)
