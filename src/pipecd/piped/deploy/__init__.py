# SPDX-License-Identifier: Apache-2.0
"""Runs deployments: queue, scheduler, stages, journal, reports to the control plane."""
