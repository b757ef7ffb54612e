# SPDX-License-Identifier: Apache-2.0
"""Deploys to one or several Kubernetes clusters."""
