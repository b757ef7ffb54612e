# SPDX-License-Identifier: Apache-2.0
"""Collects what the decisions of `plan` need, for deployments and plan previews."""
