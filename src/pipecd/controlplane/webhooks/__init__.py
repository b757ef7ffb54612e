# SPDX-License-Identifier: Apache-2.0
"""Webhooks of Git hosts: a signed push wakes the pipeds that watch the repository."""
