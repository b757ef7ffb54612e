# SPDX-License-Identifier: Apache-2.0
"""Triggers deployments: on commits, commands, drift and deployment chains."""
