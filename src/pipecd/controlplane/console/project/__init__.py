# SPDX-License-Identifier: Apache-2.0
"""Who may enter a project and what they may do there, on its settings page."""
