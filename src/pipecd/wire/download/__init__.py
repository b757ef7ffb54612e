# SPDX-License-Identifier: Apache-2.0
"""Programs that are fetched from elsewhere: plugins, and releases of piped."""
