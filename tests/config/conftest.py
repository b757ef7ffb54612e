# SPDX-License-Identifier: Apache-2.0
"""What the tests of configuration share."""

import pytest

from pipecd.config.catalog import Catalog, load_catalog


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The configuration types of every built-in plugin."""
    return load_catalog()
