# SPDX-License-Identifier: Apache-2.0
"""A trigger between a control plane and a repository."""

from functools import partial

import pytest

from pipecd.git.mirror import Repository
from servers.control_plane import OpenControlPlane
from servers.environment import open_environment
from servers.origin import Origin
from servers.trigger import OpenTrigger, TriggerEnvironment


@pytest.fixture
def site(origin: Origin) -> Repository:
    return Repository("site", origin.remote, "main")


@pytest.fixture
def open_trigger(open_plane: OpenControlPlane, origin: Origin) -> OpenTrigger:
    return partial(open_environment, TriggerEnvironment, open_plane, origin)
