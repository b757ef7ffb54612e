# SPDX-License-Identifier: Apache-2.0
"""YAML as a tree of values that know their place in the file, in the dialect of upstream."""

from pipecd.config.yamltree.compose import YamlMistake, read_yaml
from pipecd.config.yamltree.node import (
    NOWHERE,
    Entry,
    List,
    Map,
    Mark,
    Node,
    Scalar,
    of_plain,
    to_plain,
)

__all__ = [
    "NOWHERE",
    "Entry",
    "List",
    "Map",
    "Mark",
    "Node",
    "Scalar",
    "YamlMistake",
    "of_plain",
    "read_yaml",
    "to_plain",
]
