# SPDX-License-Identifier: Apache-2.0
"""Asks plugins what is running and reports it; compares it with Git."""
