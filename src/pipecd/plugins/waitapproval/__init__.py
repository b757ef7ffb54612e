# SPDX-License-Identifier: Apache-2.0
"""The WAIT_APPROVAL stage: lets people decide."""
