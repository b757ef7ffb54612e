# SPDX-License-Identifier: Apache-2.0
"""Cached facts of the control plane and of Git: applications, deployments, commands, heads."""
