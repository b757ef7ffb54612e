# SPDX-License-Identifier: Apache-2.0
"""A repository for event watchers."""

import pytest

from servers.origin import NewOrigin, Origin


@pytest.fixture
def shop(new_origin: NewOrigin) -> Origin:
    """A repository that accepts pushes to its checked-out branch."""
    origin = new_origin("shop")
    origin.git("config", "receive.denyCurrentBranch", "updateInstead")
    return origin
