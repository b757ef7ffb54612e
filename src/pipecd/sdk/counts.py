# SPDX-License-Identifier: Apache-2.0
"""Numbers in the texts of plugins."""

from pipecd.model.count import counted

__all__ = ["counted"]
