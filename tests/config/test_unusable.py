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
        pytest.param(
            "plugins: [{name: kubernetes, deployTargets: [{config: {}}, {name: dev}]}]",
            {"kubernetes": ("dev",)},
            [("kubernetes", "(line 9, column 48)", ": name: name must be set")],
            id="a deploy target without a name",
        ),
        pytest.param(
            "plugins: [{name: kubernetes, deployTargets: [5]}, {name: wait}]",
            {"wait": ()},
            [
                ("kubernetes", "(line 9, column 48)", ": must be an object"),
                ("kubernetes", "", ": must be an object"),
            ],
            id="a deploy target that is no object",
        ),
        pytest.param(
            f"plugins: [{{url: 'file:///p'}}, {KUBERNETES}]",
            {"kubernetes": ("dev",)},
            [("(line 9, column 13)", "", ": name: name must be set")],
            id="a plugin without a name",
        ),
        pytest.param(
            f"plugins: [kubernetes, {KUBERNETES}]",
            {"kubernetes": ("dev",)},
            [("(line 9, column 13)", "", ": must be an object")],
            id="a plugin that is no object",
        ),
        pytest.param(
            f"plugins: [{{url: 'file:///p', deployTargets: [{{config: {{}}}}]}}, {KUBERNETES}]",
            {"kubernetes": ("dev",)},
            [
                ("(line 9, column 13)", "", ": name: name must be set"),
                ("(line 9, column 13)", "(line 9, column 48)", ": name: name must be set"),
            ],
            id="a plugin and its deploy target without names",
        ),
        pytest.param(
            "platformProviders: [{name: a}, 5, {type: KUBERNETES}, {name: k, type: KUBERNETES}]",
            {"kubernetes": ("k",)},
            [
                ("(line 9, column 34)", "", ": must be an object"),
                ("(line 9, column 23)", "", ": type: unsupported platform provider type: "),
                ("kubernetes", "(line 9, column 37)", ": name: name must be set"),
            ],
            id="platform providers without a name or type",
        ),
        pytest.param(
            f"plugins: [{{name: a, url: 'file:///a'}}, {KUBERNETES}, {{name: a, url: 'file:///b'}}]",
            {"kubernetes": ("dev",)},
            [("a", "", ": name: two plugins are named a")],
            id="both of two plugins of one name",
        ),
        pytest.param(
            f"plugins: [{{name: a, url: x}}, {KUBERNETES}, {{name: a, url: 'file:///b'}}]",
            {"kubernetes": ("dev",)},
            [("a", "", ": url: only file, https and oci")],
            id="both of two plugins of one name, one of which has a mistake",
        ),
        pytest.param(
            "plugins: [{name: kubernetes, deployTargets: [{name: t}, {name: dev}, {name: t}]}]",
            {"kubernetes": ("dev",)},
            [("kubernetes", "t", ": name: two deploy targets are named t")],
            id="both of two deploy targets of one name",
        ),
        pytest.param(
            "plugins: [{name: a, url: 'file:///a', port: 7001}, {name: b, url: 'file:///b', port: 7001}]",
            {"a": ()},
            [("b", "", ": port: another plugin has the port 7001")],
            id="the second of two plugins with one port",
        ),
        pytest.param(
            "plugins: [{name: wait, port: 7001}, {name: b, url: 'file:///b', port: 7001}]",
            {"wait": (), "b": ()},
            [],
            id="a built-in plugin needs no port",
        ),
    ],
)  # fmt: skip
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
        if each.has_name:
            assert each.target in ("", *deploy_target_names(config)[each.plugin])


def test_what_has_no_name_cannot_be_chosen() -> None:
    kubernetes = "{name: kubernetes, deployTargets: [{config: {}}, {name: dev}]}"
    line = f"plugins: [{kubernetes}, 5, {{deployTargets: [{{name: t, labels: 5}}]}}]"
    config = read_startable_piped(f"{HEAD}  {line}\n", file="piped.yaml", catalog=CATALOG)
    assert deploy_target_names(config) == {"kubernetes": ("dev",)}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("syncInterval: soon", id="elsewhere"),
        pytest.param("syncInterval: soon\n  plugins: [{name: dance}]", id="elsewhere too"),
        pytest.param("plugins: kubernetes", id="plugins that are no list"),
    ],
)
def test_a_piped_does_not_start_with_a_mistake(line: str) -> None:
    with pytest.raises(ConfigMistake):
        read_startable_piped(f"{HEAD}  {line}\n", file="piped.yaml", catalog=CATALOG)
