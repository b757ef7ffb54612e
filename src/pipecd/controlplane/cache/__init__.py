# SPDX-License-Identifier: Apache-2.0
"""Short-lived shared facts, in memory or on Redis."""
