# SPDX-License-Identifier: Apache-2.0
"""What a plugin author imports."""
