# SPDX-License-Identifier: Apache-2.0
"""Runs one program well, and keeps its own directory and files well."""
