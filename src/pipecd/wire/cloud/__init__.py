# SPDX-License-Identifier: Apache-2.0
"""The two clouds that keep secrets and keys, asked in one way and failing in one way."""
