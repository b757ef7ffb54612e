# SPDX-License-Identifier: Apache-2.0
"""The database in one file: one writer, a few readers, nothing to install."""
