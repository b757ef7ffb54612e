# SPDX-License-Identifier: Apache-2.0
"""Git repositories, read and written by the git program."""
