# SPDX-License-Identifier: Apache-2.0
"""The WAIT_APPROVAL stage: pauses the pipeline until enough users approved."""
