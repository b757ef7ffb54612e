# SPDX-License-Identifier: Apache-2.0
"""What the tests of plugins share."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml

from pipecd.config.application import ApplicationSpec
from pipecd.config.catalog import load_catalog
from pipecd.config.envelope import Generation
from pipecd.config.read import read_application


@pytest.fixture(scope="session")
def read_v0() -> Callable[..., ApplicationSpec]:
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
