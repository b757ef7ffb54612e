# SPDX-License-Identifier: Apache-2.0
"""The in-memory cache for plugins that cache expensive results."""

from pipecd.cache import LruCache

__all__ = ["LruCache"]
