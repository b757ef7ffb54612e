# SPDX-License-Identifier: Apache-2.0
"""What a commit has only a note of: files of Git LFS and submodules."""
