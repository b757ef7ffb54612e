# SPDX-License-Identifier: Apache-2.0
"""The ANALYSIS stage: succeeds while metrics, logs and HTTP endpoints are as expected."""
