# SPDX-License-Identifier: Apache-2.0
"""Programs that a plugin runs; inside a stage `StageContext.run` also logs their output."""

from pipecd.program.limits import LimitExceeded
from pipecd.program.run import Captured, Finished, capture, run

__all__ = ["Captured", "Finished", "LimitExceeded", "capture", "run"]
