# SPDX-License-Identifier: Apache-2.0
"""Adding applications: those found in Git, and any other by hand."""
