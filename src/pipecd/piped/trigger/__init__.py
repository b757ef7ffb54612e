# SPDX-License-Identifier: Apache-2.0
"""Notices a reason to deploy: commit, command, out-of-sync, chain."""
