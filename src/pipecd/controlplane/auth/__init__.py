# SPDX-License-Identifier: Apache-2.0
"""Who is calling and what they may do."""
