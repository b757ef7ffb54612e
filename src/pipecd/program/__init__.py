# SPDX-License-Identifier: Apache-2.0
"""Runs one program well."""
