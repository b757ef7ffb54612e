# SPDX-License-Identifier: Apache-2.0
"""Clients of the clouds that store secrets and keys, with common errors."""
