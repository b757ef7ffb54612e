# SPDX-License-Identifier: Apache-2.0
"""Decides which versions are deployed, and whether a change needs the pipeline."""
