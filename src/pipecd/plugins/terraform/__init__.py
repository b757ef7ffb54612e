# SPDX-License-Identifier: Apache-2.0
"""Deploys with Terraform or OpenTofu."""
