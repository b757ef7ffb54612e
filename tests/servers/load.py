# SPDX-License-Identifier: Apache-2.0
"""How much time tests give to programs on a machine that is busy with other work."""

import os

# What tests and the programs that they start cause themselves.
_LOAD_PER_CORE = 4.0


def patient(seconds: float) -> float:
    """So many seconds, or more in proportion while other work keeps the processors busy."""
    overload = os.getloadavg()[0] / (_LOAD_PER_CORE * (os.cpu_count() or 1))
    return seconds * max(1.0, overload)
