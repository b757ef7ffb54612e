# SPDX-License-Identifier: Apache-2.0
"""Matches events to routes, then tells people."""
