# SPDX-License-Identifier: Apache-2.0
"""Registries of container images, as a place where programs are kept."""
