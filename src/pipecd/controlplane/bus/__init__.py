# SPDX-License-Identifier: Apache-2.0
"""The bus: signals between the parts and replicas of a control plane that something changed."""
