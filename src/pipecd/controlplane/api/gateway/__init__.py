# SPDX-License-Identifier: Apache-2.0
"""Verdicts for a gateway in front of the control plane, and its duties where there is none."""

from pipecd.controlplane.api.gateway.authz import authz_table
from pipecd.controlplane.api.gateway.traces import Collector, TraceDoor

__all__ = ["Collector", "TraceDoor", "authz_table"]
