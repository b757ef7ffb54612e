# SPDX-License-Identifier: Apache-2.0
"""Both ends of a plugin's conversation with piped."""

from pipecd.sdk.serving.server import PluginServer, open_door

__all__ = ["PluginServer", "open_door"]
