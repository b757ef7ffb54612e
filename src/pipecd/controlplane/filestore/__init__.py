# SPDX-License-Identifier: Apache-2.0
"""Blobs on a local directory, S3 or GCS."""
