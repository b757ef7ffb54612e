# SPDX-License-Identifier: Apache-2.0
"""Deploys to Google Cloud Run."""
