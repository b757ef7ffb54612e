# SPDX-License-Identifier: Apache-2.0
"""The database on PostgreSQL, in the shape that upstream has on MySQL."""
