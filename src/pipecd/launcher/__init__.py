# SPDX-License-Identifier: Apache-2.0
"""Fetches the configuration and the right piped version, runs it, replaces it."""
