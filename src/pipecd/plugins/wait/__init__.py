# SPDX-License-Identifier: Apache-2.0
"""The WAIT stage: pauses the pipeline for a duration."""
