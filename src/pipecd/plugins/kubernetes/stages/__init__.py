# SPDX-License-Identifier: Apache-2.0
"""What each stage does on a cluster."""
