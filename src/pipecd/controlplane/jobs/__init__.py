# SPDX-License-Identifier: Apache-2.0
"""Background upkeep, one file per job, each under a lease."""
