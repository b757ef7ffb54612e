# SPDX-License-Identifier: Apache-2.0
"""What would this branch deploy."""
