# SPDX-License-Identifier: Apache-2.0
"""Every decision, all pure: deploy or not, versions, strategy, stages."""
