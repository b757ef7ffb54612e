# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Terraform plugin, in both generations."""

from typing import Annotated, Literal

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

ToolName = Literal["", "terraform", "opentofu"]


class CommandTexts(Spec):
    """Additional arguments or variables of Terraform commands; `shared` applies to all of them."""

    shared: tuple[str, ...] = ()
    init: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    apply: tuple[str, ...] = ()


class TerraformApplication(Spec):
    """The section `plugins.terraform` of an application.

    Without a workspace none is selected. Without a `tool` that of the deploy target is used, and
    without a version the one on the machine of piped.
    """

    tool: ToolName = ""
    workspace: str = ""
    terraform_version: str = ""
    vars: tuple[str, ...] = ()
    var_files: tuple[str, ...] = ()
    command_flags: CommandTexts = CommandTexts()
    command_envs: CommandTexts = CommandTexts()
    require_approval_for_destroy: bool = False
    """Refuses a plan that destroys something, unless people approved it between plan and apply."""


class PlanOptions(Spec):
    """TERRAFORM_PLAN; a plan without changes may end the deployment successfully."""

    exit_on_no_changes: bool = False


class TerraformTarget(Spec):
    """What all applications of a target share; its `vars` come before those of the application.

    A plan preview runs code of a branch with the credentials of piped, so it can be disabled.
    """

    tool: ToolName = ""
    vars: tuple[str, ...] = ()
    drift_detection_enabled: bool = True
    plan_preview_enabled: bool = True
    require_approval_for_destroy: bool = False


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
        always_uses_pipeline=True,
        rollback_stage="TERRAFORM_ROLLBACK",
    ),
    v0_stages={
        "TERRAFORM_SYNC": V0Stage(NoOptions, name="TERRAFORM_APPLY"),
        "TERRAFORM_PLAN": V0Stage(PlanOptions),
        "TERRAFORM_APPLY": V0Stage(NoOptions),
    },
)
