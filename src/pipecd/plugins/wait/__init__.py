# SPDX-License-Identifier: Apache-2.0
"""The WAIT stage: lets time pass."""
