# SPDX-License-Identifier: Apache-2.0
"""The engines under the tables: SQLite, MySQL (or MariaDB) and PostgreSQL."""
