# SPDX-License-Identifier: Apache-2.0
"""The built-in plugins, loaded by entry point; no plugin imports another."""
