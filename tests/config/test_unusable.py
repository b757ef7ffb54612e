# SPDX-License-Identifier: Apache-2.0
"""A piped file with mistakes in plugins: what a piped starts with, and what it starts without."""

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import deploy_target_names, read_startable_piped
from pipecd.config.report import ConfigMistake

CATALOG = load_catalog()
HEAD = """
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: p1
  pipedKeyFile: /etc/key
  apiAddress: localhost:9080
"""
KUBERNETES = "{name: kubernetes, deployTargets: [{name: dev}]}"


@pytest.mark.parametrize(
    ("line", "usable", "unusable"),
    [
        pytest.param(
            f"plugins: [{KUBERNETES}]", {"kubernetes": ("dev",)}, [], id="a file without mistakes"
        ),
        pytest.param(
            f"plugins: [{{name: dance}}, {KUBERNETES}]",
            {"kubernetes": ("dev",)},
            [("dance", "", "name: no built-in plugin is named dance")],
            id="a plugin that is not built in",
        ),
        pytest.param(
            f"plugins: [{{name: a, url: x}}, {{name: dance}}, {KUBERNETES}]",
            {"kubernetes": ("dev",)},
            [
                ("a", "", "url: only file, https and oci"),
                ("dance", "", "no built-in plugin is named dance"),
            ],
            id="mistakes of the form, and of what a plugin declares",
        ),
        pytest.param(
            "plugins: [{name: ecs, deployTargets: [{name: a}, {name: b, config: {region: r}}]}]",
            {"ecs": ("b",)},
            [("ecs", "a", ": config.region: region must be set")],
            id="one of two deploy targets",
        ),
        pytest.param(
            "plugins: [{name: ecs, deployTargets: [{name: a}]}]",
            {},
            [
                ("ecs", "a", ": config.region: region must be set"),
                ("ecs", "", ": config.region: region must be set"),
            ],
            id="the only deploy target",
        ),
        pytest.param(
            "platformProviders: [{name: a, type: ECS}, {name: k, type: KUBERNETES}]",
            {"kubernetes": ("k",)},
            [
                ("ecs", "a", ": config.region: region must be set"),
                ("ecs", "", ": config.region: region must be set"),
            ],
            id="a platform provider",
        ),
        pytest.param(
            "platformProviders: [{name: a, type: MOON}, {name: k, type: KUBERNETES}]",
            {"kubernetes": ("k",)},
            [
                ("MOON", "a", ": type: unsupported platform provider type: MOON"),
                ("MOON", "", ": type: unsupported platform provider type: MOON"),
            ],
            id="a platform that does not exist",
        ),
        pytest.param(
            "analysisProviders: [{name: p, type: PROMETHEUS}]",
            {},
            [("analysis", "", ": analysisProviders[0]")],
            id="an analysis provider",
        ),
    ],
)
def test_a_piped_starts_without(
    line: str, usable: dict[str, tuple[str, ...]], unusable: list[tuple[str, str, str]]
) -> None:
    config = read_startable_piped(f"{HEAD}  {line}\n", file="piped.yaml", catalog=CATALOG)
    plugins = {p.name: tuple(t.name for t in p.deploy_targets) for p in config.spec.plugins}
    assert plugins == usable
    assert [(each.plugin, each.target) for each in config.unusable] == [u[:2] for u in unusable]
    for each, (_, _, reason) in zip(config.unusable, unusable, strict=True):
        assert reason in each.reason
        assert each.reason.startswith("piped.yaml:9:")
        assert each.target in ("", *deploy_target_names(config)[each.plugin])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("syncInterval: soon", id="elsewhere"),
        pytest.param("syncInterval: soon\n  plugins: [{name: dance}]", id="elsewhere too"),
        pytest.param("plugins: [{url: 'file:///p'}]", id="in a plugin without a name"),
        pytest.param(
            "plugins: [{name: a, url: 'file:///a'}, {name: a, url: 'file:///b'}]",
            id="in a plugin of which there are two",
        ),
        pytest.param(
            "plugins: [{name: kubernetes, deployTargets: [{name: t}, {name: t}]}]",
            id="in a deploy target of which there are two",
        ),
    ],
)
def test_a_piped_does_not_start_with_a_mistake(line: str) -> None:
    with pytest.raises(ConfigMistake):
        read_startable_piped(f"{HEAD}  {line}\n", file="piped.yaml", catalog=CATALOG)
