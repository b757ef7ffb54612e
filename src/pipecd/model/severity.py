# SPDX-License-Identifier: Apache-2.0
"""How loud a line of a stage log is."""

from enum import IntEnum


class LogSeverity(IntEnum):
    INFO = 0
    SUCCESS = 1
    ERROR = 2
