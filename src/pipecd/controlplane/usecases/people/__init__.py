# SPDX-License-Identifier: Apache-2.0
"""Projects and whoever may enter them: roles, groups, sessions, API keys."""
