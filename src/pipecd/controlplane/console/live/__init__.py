# SPDX-License-Identifier: Apache-2.0
"""Live pages: what a page follows and how it hears of it."""
