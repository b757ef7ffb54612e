# SPDX-License-Identifier: Apache-2.0
"""Manifests as values: their keys, what PipeCD writes on them and the order of applying."""
