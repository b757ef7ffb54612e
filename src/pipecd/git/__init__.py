# SPDX-License-Identifier: Apache-2.0
"""Repositories, by the git program."""
