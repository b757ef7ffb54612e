# SPDX-License-Identifier: Apache-2.0
"""A live state reporter between a control plane, a repository and a plugin."""

from functools import partial

import pytest

from servers.control_plane import OpenControlPlane
from servers.environment import open_environment
from servers.livestate import LiveStateEnvironment, OpenLiveState
from servers.origin import Origin


@pytest.fixture
def open_live_state(open_plane: OpenControlPlane, origin: Origin) -> OpenLiveState:
    return partial(open_environment, LiveStateEnvironment, open_plane, origin)
