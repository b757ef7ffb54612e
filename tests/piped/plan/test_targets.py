# SPDX-License-Identifier: Apache-2.0
"""Where a deployment goes, whether its application names a provider or deploy targets."""

from typing import Any

import pytest

from pipecd.model.errors import UserMistake
from pipecd.piped.plan.targets import deploy_targets
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets

KNOWN = {"kubernetes": ("dev", "prod"), "k8s_go": ("prod",), "wait": ()}


def aimed(**targets: list[str]) -> dict[str, Any]:
    chosen = {plugin: DeployTargets(deploy_targets=names) for plugin, names in targets.items()}
    return {"deploy_targets_by_plugin": chosen}


@pytest.mark.parametrize(
    ("facts", "plugins", "targets"),
    [
        pytest.param(aimed(kubernetes=["dev", "prod"]), [], {"kubernetes": ("dev", "prod")}, id="deploy targets are taken as they are"),
        pytest.param({**aimed(kubernetes=["dev"]), "platform_provider": "prod"}, ["kubernetes"], {"kubernetes": ("dev",)}, id="and count more than a provider"),
        pytest.param({"platform_provider": "prod"}, ["kubernetes"], {"kubernetes": ("prod",)}, id="a platform provider is a target of its plugin"),
        pytest.param({"cloud_provider": "prod"}, ["kubernetes"], {"kubernetes": ("prod",)}, id="under its older name too"),
        pytest.param({"platform_provider": "prod"}, ["k8s_go"], {"k8s_go": ("prod",)}, id="only of the plugin that the application names"),
        pytest.param({"platform_provider": "prod"}, ["kubernetes", "wait"], {"kubernetes": ("prod",)}, id="a plugin of stages only has none"),
        pytest.param({"platform_provider": "prod"}, [], {}, id="an application without a platform needs none"),
        pytest.param({}, ["kubernetes"], {}, id="nothing is chosen for anybody"),
        pytest.param(aimed(elsewhere=["x"]), [], {"elsewhere": ("x",)}, id="a plugin that piped does not have is told elsewhere"),
    ],
)  # fmt: skip
def test_where_it_goes(facts: dict[str, Any], plugins: list[str], targets: dict[str, Any]) -> None:
    assert deploy_targets(Deployment(**facts), plugins, KNOWN) == targets


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        pytest.param({"platform_provider": "moon"}, "platform provider moon is not defined for plugin kubernetes; .* use one of: dev, prod", id="a provider"),
        pytest.param(aimed(kubernetes=["moon"]), "deploy target moon is not defined for plugin kubernetes; .* dev, prod", id="a target"),
    ],
)  # fmt: skip
def test_what_piped_does_not_know_is_named(facts: dict[str, Any], told: str) -> None:
    with pytest.raises(UserMistake, match=told):
        deploy_targets(Deployment(**facts), ["kubernetes"], KNOWN)
