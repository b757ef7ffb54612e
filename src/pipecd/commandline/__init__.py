# SPDX-License-Identifier: Apache-2.0
"""Command lines as users of the Go tools type them, on click."""
