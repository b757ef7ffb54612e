# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Terraform plugin, in both generations."""

from collections.abc import Mapping

from pipecd.sdk.config import (
    ApplicationKind,
    NoOptions,
    PluginConfig,
    Section,
    Spec,
    V0Kind,
    V0Stage,
    plain,
)


class CommandTexts(Spec):
    """Extra words for the commands of Terraform; `shared` goes to each of them."""

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
    """The `input` of a first-generation TerraformApp, which does not roll back unless told to."""

    auto_rollback: bool = False


class V0TerraformApp(Spec):
    """The fields of a first-generation TerraformApp beyond the generic ones."""

    input: V0TerraformInput = V0TerraformInput()
    quick_sync: NoOptions = NoOptions()


def _sections(fields: V0TerraformApp, stages: frozenset[str]) -> Mapping[str, Section]:
    section = plain(fields.input)
    del section["autoRollback"]
    return {"terraform": section}


CONFIG = PluginConfig(
    name="terraform",
    application=TerraformApplication,
    stages={"TERRAFORM_PLAN": PlanOptions, "TERRAFORM_APPLY": NoOptions},
    deploy_target=TerraformTarget,
    v0=V0Kind(
        kind="TerraformApp",
        application_kind=ApplicationKind.TERRAFORM,
        spec=V0TerraformApp,
        translate=_sections,
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
