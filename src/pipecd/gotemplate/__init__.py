# SPDX-License-Identifier: Apache-2.0
"""The subset of Go templates that users write."""
