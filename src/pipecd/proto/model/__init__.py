# SPDX-License-Identifier: Apache-2.0
"""Generated messages of the stored entities."""
