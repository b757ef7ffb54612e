# SPDX-License-Identifier: Apache-2.0
"""The systems that measure, one module each."""
