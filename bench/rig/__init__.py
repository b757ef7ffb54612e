# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder share: databases, a server, a world in it, and callers."""
