# SPDX-License-Identifier: Apache-2.0
"""Files of a working copy: a repository may name any path, but only files inside of it are read."""

from pipecd.program.contained_file import contained_path, read_contained, validate_tree

__all__ = ["contained_path", "read_contained", "validate_tree"]
