# SPDX-License-Identifier: Apache-2.0
"""Application configurations and working copies of a commit, from Git."""
