# SPDX-License-Identifier: Apache-2.0
"""How often the supervisor probes an instance."""

import pytest

from pipecd.plugins.process.desired import HealthProbe
from pipecd.plugins.process.probes import pause_after_probe


@pytest.mark.parametrize(
    ("interval", "is_pending", "pause"),
    [
        pytest.param(2.0, False, 2.0, id="a healthy instance at its interval"),
        pytest.param(2.0, True, 0.05, id="a starting instance often, so that it serves soon"),
        pytest.param(0.0, False, 0.05, id="without an interval the supervisor is not kept busy"),
        pytest.param(1e-9, False, 0.05, id="with a tiny interval neither"),
        pytest.param(0.0, True, 0.05, id="a starting instance without an interval neither"),
    ],
)
def test_the_pause_after_a_probe(interval: float, is_pending: bool, pause: float) -> None:
    assert pause_after_probe(HealthProbe(interval=interval), is_pending=is_pending) == pause
