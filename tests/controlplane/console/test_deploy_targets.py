# SPDX-License-Identifier: Apache-2.0
"""Platform providers and deploy targets of a piped, and their selection in a form."""
# v0 pipeds report fields that the protobuf files call deprecated.
# pyright: reportDeprecated=false

import pytest

from pipecd.controlplane.console.deploy_targets import (
    NO_TARGET,
    TargetOption,
    TargetSelection,
    platform_choices,
    platform_name,
    platforms,
    target_options,
)
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import UserMistake
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.piped_pb2 import Piped

PROVIDERS = Piped(
    platform_providers=[
        Piped.PlatformProvider(name="eu", type="KUBERNETES"),
        Piped.PlatformProvider(name="us", type="KUBERNETES"),
        Piped.PlatformProvider(name="tf", type="TERRAFORM"),
    ],
    # Older pipeds report the same twice, and ours report the plugins behind them as well.
    cloud_providers=[Piped.CloudProvider(name="eu", type="KUBERNETES")],
    plugins=[Piped.Plugin(name="kubernetes", deploy_targets=["eu", "us"])],
)
TARGETS = Piped(
    plugins=[
        Piped.Plugin(name="kubernetes", deploy_targets=["eu", "us"]),
        Piped.Plugin(name="terraform", deploy_targets=["tf"]),
        Piped.Plugin(name="wait"),
    ]
)
ONE_TARGET = Piped(plugins=[Piped.Plugin(name="kubernetes", deploy_targets=["eu"])])


@pytest.mark.parametrize(
    ("piped", "names", "default"),
    [
        pytest.param(PROVIDERS, ["eu", "us", "tf"], "", id="providers come before plugins"),
        pytest.param(TARGETS, ["eu", "us", "tf"], "", id="the targets of all plugins"),
        pytest.param(ONE_TARGET, ["eu"], "kubernetes/eu", id="the only one is the default"),
        pytest.param(Piped(), [], "", id="a piped that has none"),
    ],
)
def test_the_options_of_a_piped(piped: Piped, names: list[str], default: str) -> None:
    options = target_options(piped)
    assert [option.name for option in options.options] == names
    assert options.default == default


def test_a_kind_has_its_own_providers_only() -> None:
    options = target_options(PROVIDERS)
    assert options.of_kind(ApplicationKind.TERRAFORM).options == (TargetOption("TERRAFORM", "tf"),)
    assert options.of_kind(ApplicationKind.TERRAFORM).default == "TERRAFORM/tf"
    assert options.of_kind(ApplicationKind.ECS).options == ()


@pytest.mark.parametrize(
    ("piped", "kind", "is_lacking"),
    [
        pytest.param(PROVIDERS, ApplicationKind.ECS, True, id="a kind without a provider"),
        pytest.param(PROVIDERS, ApplicationKind.TERRAFORM, False, id="a kind with providers"),
        pytest.param(TARGETS, ApplicationKind.ECS, False, id="plugins may deploy any kind"),
        pytest.param(
            Piped(platform_providers=[Piped.PlatformProvider(name="tf", type="TERRAFORM")]),
            ApplicationKind.KUBERNETES,
            False,
            id="an application of scripts needs no provider",
        ),
    ],
)
def test_a_piped_lacks_a_kind(piped: Piped, kind: ApplicationKind, is_lacking: bool) -> None:
    assert target_options(piped).lacks(kind) is is_lacking


def test_targets_are_of_any_kind() -> None:
    options = target_options(TARGETS)
    assert options.of_kind(ApplicationKind.TERRAFORM) == options


@pytest.mark.parametrize(
    ("piped", "values", "selection"),
    [
        pytest.param(
            PROVIDERS,
            ["TERRAFORM/tf"],
            TargetSelection(ApplicationKind.TERRAFORM, "tf"),
            id="a provider",
        ),
        pytest.param(
            TARGETS,
            ["kubernetes/us", "terraform/tf", "kubernetes/eu"],
            TargetSelection(targets={"kubernetes": ("us", "eu"), "terraform": ("tf",)}),
            id="targets of several plugins",
        ),
        pytest.param(TARGETS, [NO_TARGET], TargetSelection(), id="no target selected on purpose"),
        pytest.param(Piped(), [], TargetSelection(), id="no choice without alternatives"),
    ],
)
def test_a_selection(piped: Piped, values: list[str], selection: TargetSelection) -> None:
    assert target_options(piped).select(values) == selection


@pytest.mark.parametrize(
    ("piped", "values", "mistake"),
    [
        pytest.param(PROVIDERS, [], "Choose one platform provider", id="no provider"),
        pytest.param(PROVIDERS, ["ECS/x"], "no longer has ECS/x", id="a removed provider"),
        pytest.param(
            PROVIDERS, ["KUBERNETES/eu", "KUBERNETES/us"], "Choose one", id="two providers"
        ),
        pytest.param(TARGETS, [], "Choose a deploy target", id="forgotten targets"),
        pytest.param(TARGETS, [NO_TARGET, "terraform/tf"], "not both", id="one and none"),
        pytest.param(Piped(), ["kubernetes/eu"], "no longer", id="a removed target"),
    ],
)
def test_an_invalid_selection_is_rejected(piped: Piped, values: list[str], mistake: str) -> None:
    with pytest.raises(UserMistake, match=mistake):
        target_options(piped).select(values)


def application(*plugins: str, kind: ApplicationKind | None = None) -> Application:
    """An application of plugins, or of a v0 kind."""
    made = Application(
        deploy_targets_by_plugin={
            plugin: DeployTargets(deploy_targets=["dev"]) for plugin in plugins
        }
    )
    if kind is not None:
        made.kind = common.ApplicationKind.ValueType(int(kind))
        made.platform_provider = "dev"
    return made


@pytest.mark.parametrize(
    ("application", "values", "text"),
    [
        pytest.param(application(kind=ApplicationKind.ECS), ("5",), "ECS", id="a kind of v0"),
        pytest.param(application("terraform"), ("1",), "Terraform", id="the plugin of a kind"),
        pytest.param(application("process"), ("process",), "process", id="another plugin"),
        pytest.param(
            application("process", "kubernetes", "kubernetes_multicluster"),
            ("0", "process"),
            "Kubernetes, process",
            id="several plugins",
        ),
        pytest.param(application(), (), "", id="neither, as with scripts only"),
    ],
)
def test_the_platforms_of_an_application(
    application: Application, values: tuple[str, ...], text: str
) -> None:
    assert (platforms(application), platform_name(application)) == (values, text)


def test_a_filter_offers_all_kinds_and_the_other_plugins_that_deploy() -> None:
    other = Piped(
        plugins=[
            Piped.Plugin(name="process", deploy_targets=["vm"]),
            Piped.Plugin(name="scriptrun"),
        ]
    )
    offered = [text for _, text in platform_choices([TARGETS, other])]
    assert offered == ["Kubernetes", "Terraform", "Lambda", "Cloud Run", "ECS", "process"]
