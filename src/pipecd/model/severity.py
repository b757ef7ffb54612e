# SPDX-License-Identifier: Apache-2.0
"""The severity of a line in a stage log."""

from enum import IntEnum


class LogSeverity(IntEnum):
    INFO = 0
    SUCCESS = 1
    ERROR = 2
