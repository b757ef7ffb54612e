# SPDX-License-Identifier: Apache-2.0
"""Programs that a plugin runs; inside a stage `StageContext.run` also logs their output."""

from pipecd.program.capture import Captured, capture
from pipecd.program.run import Finished, run

__all__ = ["Captured", "Finished", "capture", "run"]
