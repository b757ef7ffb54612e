# SPDX-License-Identifier: Apache-2.0
"""A plan previewer between a control plane, a repository and plugins."""

from functools import partial

import pytest

from servers.control_plane import OpenControlPlane
from servers.environment import open_environment
from servers.origin import Origin
from servers.planpreview import OpenPreviews, PreviewEnvironment


@pytest.fixture
def open_previews(open_plane: OpenControlPlane, origin: Origin) -> OpenPreviews:
    """Opens an environment; keyword arguments are its fields."""
    return partial(open_environment, PreviewEnvironment, open_plane, origin)
