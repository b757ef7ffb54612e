# SPDX-License-Identifier: Apache-2.0
"""The stores by noun, on any engine."""
