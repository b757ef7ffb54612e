# SPDX-License-Identifier: Apache-2.0
"""The in-memory cache for plugins that remember what is costly to compute."""

from pipecd.cache import LruCache

__all__ = ["LruCache"]
