# SPDX-License-Identifier: Apache-2.0
"""A real control plane, a real repository, and a deployer between them."""

from functools import partial
from pathlib import Path

import pytest

from servers.deployer import OpenDeployer, open_deployer


@pytest.fixture
def open_setup(tmp_path: Path) -> OpenDeployer:
    """Opens a control plane with one application of one piped."""
    return partial(open_deployer, tmp_path)
