# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the configuration tests."""

import pytest

from pipecd.config.catalog import Catalog, load_catalog


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """Returns the configuration types of every built-in plugin."""
    return load_catalog()
