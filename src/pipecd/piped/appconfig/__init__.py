# SPDX-License-Identifier: Apache-2.0
"""Reports the application files found in Git."""
