# SPDX-License-Identifier: Apache-2.0
"""The guides of piped and control plane files have every key, and their samples are valid."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.catalog import Catalog
from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.piped import PipedSpec, V0PipedSpec
from pipecd.config.read import read_file
from pipecd.config.spec import Spec

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PIPED = GUIDE / "piped-configuration.md"
CONTROL_PLANE = GUIDE / "control-plane-configuration.md"


def specs_in(annotation: Any) -> Iterator[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from specs_in(argument)


def keys_of(spec: type[Spec]) -> Iterator[str]:
    for name, field in spec.model_fields.items():
        yield field.alias or name
        for inner in specs_in(field.annotation):
            yield from keys_of(inner)


def documented(text: str) -> set[str]:
    words = re.findall(r"`([^`\s]+)`", text)
    return {part for word in words for part in re.split(r"[.\[\]]+", word)}


PAGES = [
    (PIPED, PipedSpec),
    (PIPED, V0PipedSpec),
    (CONTROL_PLANE, ControlPlaneSpec),
]


@pytest.mark.parametrize(("page", "spec"), PAGES, ids=[spec.__name__ for _, spec in PAGES])
def test_the_guide_has_every_key_of(page: Path, spec: type[Spec]) -> None:
    assert set(keys_of(spec)) - documented(page.read_text()) == set()


def test_the_guide_has_every_setting_of_built_in_plugins(catalog: Catalog) -> None:
    settings = {
        key
        for plugin in catalog.plugins
        for spec in (plugin.piped, plugin.deploy_target)
        if spec
        for key in keys_of(spec)
    }
    assert settings - documented(PIPED.read_text()) == set()


SAMPLES = [
    pytest.param(page, sample, id=f"{page.stem} {number}")
    for page in (PIPED, CONTROL_PLANE)
    for number, sample in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize(("page", "sample"), SAMPLES)
def test_a_sample_is_read_without_a_warning(page: Path, sample: str, catalog: Catalog) -> None:
    assert read_file(sample, file=page.name, catalog=catalog).warnings == ()
