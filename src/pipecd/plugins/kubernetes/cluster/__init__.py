# SPDX-License-Identifier: Apache-2.0
"""Talks to the API server of a cluster."""
