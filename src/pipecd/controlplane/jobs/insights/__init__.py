# SPDX-License-Identifier: Apache-2.0
"""Collects what the charts are made of into files."""
