# SPDX-License-Identifier: Apache-2.0
"""Moves the pipeds and applications of a project from one control plane to another."""
