# SPDX-License-Identifier: Apache-2.0
"""Local copies of control-plane facts: applications, deployments, commands, events."""
