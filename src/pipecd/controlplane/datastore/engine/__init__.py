# SPDX-License-Identifier: Apache-2.0
"""What the engines have in common: words, threads, connections, the making of tables."""
