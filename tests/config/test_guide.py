# SPDX-License-Identifier: Apache-2.0
"""The guide of application files has every key, and its samples are valid."""

import re
from pathlib import Path

import pytest

from pipecd.config.application import EVENTS, ApplicationSpec, EventWatcherFileSpec
from pipecd.config.application_v0 import v0_type
from pipecd.config.catalog import load_catalog
from pipecd.config.read import Generation, read_file
from pipecd.config.schema import kinds_of
from pipecd.config.spec import Spec
from pipecd.config.yaml_tree import read_yaml, to_plain
from servers.config_keys import keys_of

CATALOG = load_catalog()
GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "configuration.md").read_text()
SAMPLES = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.M | re.S)
WORDS = set(re.findall(r"[A-Za-z][A-Za-z0-9_]*", " ".join(re.findall(r"`([^`]*)`", GUIDE))))


TYPES: dict[str, type[Spec]] = {
    "Application": ApplicationSpec,
    "EventWatcher": EventWatcherFileSpec,
    **{p.v0.kind: v0_type(p.v0.spec) for p in CATALOG.plugins if p.v0},
    **{f"plugins.{p.name}": p.application for p in CATALOG.plugins if p.application},
    **{f"{name} of v0": stage.options for name, stage in CATALOG.v0_stages.items()},
    **CATALOG.stages,
    **CATALOG.kinds,
}


@pytest.mark.parametrize("name", TYPES)
def test_every_key_is_in_the_guide(name: str) -> None:
    assert set(keys_of(TYPES[name])) - WORDS == set()


def test_every_stage_event_and_section_is_in_the_guide() -> None:
    plugins = {p.name for p in CATALOG.plugins if p.application}
    assert {*CATALOG.stages, *CATALOG.v0_stages, *EVENTS, *plugins} - WORDS == set()


def test_every_kind_has_a_sample() -> None:
    assert {to_plain(read_yaml(sample))["kind"] for sample in SAMPLES} == set(kinds_of(CATALOG))


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_a_sample_is_read_without_a_warning(sample: str) -> None:
    assert read_file(sample, file="sample.yaml", catalog=CATALOG).warnings == ()


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if "kind: Application" not in s and "App\n" in s]
)
def test_a_sample_of_a_v0_kind_is_read_by_v0(sample: str) -> None:
    read = read_file(sample, file="sample.yaml", catalog=CATALOG, reader=Generation.V0)
    assert read.warnings == ()
