# SPDX-License-Identifier: Apache-2.0
"""Logging, metrics, tracing and the admin port."""
