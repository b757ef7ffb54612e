# SPDX-License-Identifier: Apache-2.0
"""The built-in plugins, strangers to each other, found by entry point."""
