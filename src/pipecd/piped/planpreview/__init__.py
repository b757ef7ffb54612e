# SPDX-License-Identifier: Apache-2.0
"""Plan previews: what merging a branch would deploy."""
