# SPDX-License-Identifier: Apache-2.0
"""Gathers the facts a plan needs and calls plan."""
