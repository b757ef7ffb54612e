# SPDX-License-Identifier: Apache-2.0
"""Generated messages and stubs between piped and its plugins."""
