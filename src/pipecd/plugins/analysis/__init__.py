# SPDX-License-Identifier: Apache-2.0
"""The ANALYSIS stage: lets metrics decide."""
