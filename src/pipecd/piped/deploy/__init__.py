# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of a deployment: scheduler, one stage, stop reasons, stage logs."""
