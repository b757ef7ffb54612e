# SPDX-License-Identifier: Apache-2.0
"""How two documents differ, path by path, and that as text for people."""

from pipecd.sdk.diff.compare import Options, compare
from pipecd.sdk.diff.node import MISSING, Node, Path, find, is_list, is_map, scalar_text
from pipecd.sdk.diff.text import render

__all__ = [
    "MISSING",
    "Node",
    "Options",
    "Path",
    "compare",
    "find",
    "is_list",
    "is_map",
    "render",
    "scalar_text",
]
