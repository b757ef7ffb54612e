# SPDX-License-Identifier: Apache-2.0
"""The database on MySQL or MariaDB, laid out as upstream has it."""
