# SPDX-License-Identifier: Apache-2.0
"""Reads configuration files of the first generation for the tests of plugins."""

from collections.abc import Sequence
from typing import Any, Protocol

import pytest
import yaml

from pipecd.config.application import ApplicationSpec
from pipecd.config.catalog import load_catalog
from pipecd.config.envelope import Generation
from pipecd.config.read import read_application


class ReadV0(Protocol):
    """Reads an application of a v0 kind with these fields and stages."""

    def __call__(
        self, kind: str, spec: dict[str, Any], stages: Sequence[object] = ()
    ) -> ApplicationSpec: ...


@pytest.fixture(scope="session")
def read_v0() -> ReadV0:
    """Reads an application of a v0 kind strictly, as a v0 piped does."""
    catalog = load_catalog()

    def read(kind: str, spec: dict[str, Any], stages: Sequence[object] = ()) -> ApplicationSpec:
        pipeline = {"pipeline": {"stages": [*stages]}} if stages else {}
        text = yaml.safe_dump(
            {"apiVersion": "pipecd.dev/v1beta1", "kind": kind, "spec": {**spec, **pipeline}}
        )
        return read_application(
            text, file="app.pipecd.yaml", catalog=catalog, reader=Generation.V0
        ).spec

    return read
