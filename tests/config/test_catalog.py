# SPDX-License-Identifier: Apache-2.0
"""The catalog has the configuration types of every installed plugin."""

from importlib.metadata import EntryPoint

import pytest

from pipecd.config import catalog as module
from pipecd.config.catalog import Catalog, PluginConfig, load_catalog
from pipecd.model.application import ApplicationKind


def test_every_builtin_plugin_is_in_the_catalog(catalog: Catalog) -> None:
    assert {plugin.name for plugin in catalog.plugins} >= {
        "analysis", "cloudrun", "ecs", "kubernetes", "kubernetes_multicluster", "lambda",
        "process", "scriptrun", "terraform", "wait", "waitapproval",
    }  # fmt: skip


def test_every_application_kind_belongs_to_a_plugin(catalog: Catalog) -> None:
    kinds = {p.v0.application_kind for p in catalog.plugins if p.v0}
    assert kinds == set(ApplicationKind)


@pytest.mark.parametrize("kind", list(ApplicationKind), ids=lambda kind: kind.name)
def test_a_provider_type_has_its_plugin(kind: ApplicationKind, catalog: Catalog) -> None:
    found = catalog.provider(kind.name)
    assert found is not None
    plugin, v0 = found
    assert v0.application_kind is kind
    assert catalog.v0_kind(v0.kind) is v0
    assert catalog.v0_kind_of_plugin(plugin.name) is v0


def test_unknown_names_return_none(catalog: Catalog) -> None:
    assert catalog.plugin("foo") is None
    assert catalog.provider("FOO") is None
    assert catalog.v0_kind("FooApp") is None
    assert catalog.v0_kind_of_plugin("foo") is None


def test_every_v0_stage_is_translated_to_a_stage_of_a_plugin(catalog: Catalog) -> None:
    names = {stage.name or name for name, stage in catalog.v0_stages.items()}
    assert names <= catalog.stages.keys()


def test_no_two_plugins_have_the_same_stage(catalog: Catalog) -> None:
    names = [name for plugin in catalog.plugins for name in plugin.stages]
    assert sorted(names) == sorted(set(names))


def test_an_entry_point_that_is_not_a_plugin_config_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = EntryPoint("wrong", "pipecd.config.catalog:GROUP", module.GROUP)

    def entry_points(*, group: str) -> list[EntryPoint]:
        return [wrong] if group == module.GROUP else []

    monkeypatch.setattr(module, "entry_points", entry_points)
    with pytest.raises(TypeError, match="wrong"):
        load_catalog()


def test_a_catalog_can_be_built_from_any_plugins() -> None:
    catalog = Catalog((PluginConfig(name="mine"),))
    assert catalog.plugin("mine") == PluginConfig(name="mine")
    assert catalog.v0_kinds == ()
