# SPDX-License-Identifier: Apache-2.0
"""The stores on SQL."""
