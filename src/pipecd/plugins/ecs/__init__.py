# SPDX-License-Identifier: Apache-2.0
"""Deploys to Amazon ECS."""
