# SPDX-License-Identifier: Apache-2.0
"""Where a piped can deploy to, and what a form may choose of it."""
# Pipeds of the first generation tell their places in fields that the wire calls deprecated.
# pyright: reportDeprecated=false

import pytest

from pipecd.controlplane.console.deploy_targets import NO_TARGET, Choice, Place, places_of
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import UserMistake
from pipecd.proto.model.piped_pb2 import Piped

PROVIDERS = Piped(
    platform_providers=[
        Piped.PlatformProvider(name="eu", type="KUBERNETES"),
        Piped.PlatformProvider(name="us", type="KUBERNETES"),
        Piped.PlatformProvider(name="tf", type="TERRAFORM"),
    ],
    # Older pipeds tell the same twice, and ours tell the plugins behind them as well.
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
    ("piped", "options", "default"),
    [
        pytest.param(PROVIDERS, ["eu", "us", "tf"], "", id="providers come before plugins"),
        pytest.param(TARGETS, ["eu", "us", "tf"], "", id="the targets of all plugins"),
        pytest.param(ONE_TARGET, ["eu"], "kubernetes/eu", id="the only one is the default"),
        pytest.param(Piped(), [], "", id="a piped that has none"),
    ],
)
def test_a_piped_offers(piped: Piped, options: list[str], default: str) -> None:
    places = places_of(piped)
    assert [place.name for place in places.options] == options
    assert places.default == default


def test_a_kind_has_its_own_providers_only() -> None:
    places = places_of(PROVIDERS)
    assert places.of_kind(ApplicationKind.TERRAFORM).options == (Place("TERRAFORM", "tf"),)
    assert places.of_kind(ApplicationKind.TERRAFORM).default == "TERRAFORM/tf"
    assert places.of_kind(ApplicationKind.ECS).options == ()


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
            id="what may be an application of scripts needs no provider",
        ),
    ],
)
def test_a_piped_lacks_a_kind(piped: Piped, kind: ApplicationKind, is_lacking: bool) -> None:
    assert places_of(piped).lacks(kind) is is_lacking


def test_targets_are_of_any_kind() -> None:
    places = places_of(TARGETS)
    assert places.of_kind(ApplicationKind.TERRAFORM) == places


@pytest.mark.parametrize(
    ("piped", "values", "choice"),
    [
        pytest.param(
            PROVIDERS, ["TERRAFORM/tf"], Choice(ApplicationKind.TERRAFORM, "tf"), id="a provider"
        ),
        pytest.param(
            TARGETS,
            ["kubernetes/us", "terraform/tf", "kubernetes/eu"],
            Choice(targets={"kubernetes": ("us", "eu"), "terraform": ("tf",)}),
            id="targets of several plugins",
        ),
        pytest.param(TARGETS, [NO_TARGET], Choice(), id="no target, as somebody said"),
        pytest.param(Piped(), [], Choice(), id="nothing where there is nothing to choose"),
    ],
)
def test_a_choice_means(piped: Piped, values: list[str], choice: Choice) -> None:
    assert places_of(piped).choose(values) == choice


@pytest.mark.parametrize(
    ("piped", "values", "mistake"),
    [
        pytest.param(PROVIDERS, [], "Choose one platform provider", id="no provider"),
        pytest.param(PROVIDERS, ["ECS/x"], "no ECS/x any more", id="a provider that is gone"),
        pytest.param(
            PROVIDERS, ["KUBERNETES/eu", "KUBERNETES/us"], "Choose one", id="two providers"
        ),
        pytest.param(TARGETS, [], "Choose where", id="forgotten targets"),
        pytest.param(TARGETS, [NO_TARGET, "terraform/tf"], "not both", id="one and none"),
        pytest.param(Piped(), ["kubernetes/eu"], "any more", id="a target that is gone"),
    ],
)
def test_a_choice_is_refused(piped: Piped, values: list[str], mistake: str) -> None:
    with pytest.raises(UserMistake, match=mistake):
        places_of(piped).choose(values)
