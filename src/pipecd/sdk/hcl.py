# SPDX-License-Identifier: Apache-2.0
"""The parser of HCL, the language of Terraform files."""

from pipecd.config.field_tree import ListNode, Node, ObjectNode, ReadOnlyNode, ValueNode
from pipecd.config.hcl import parse_hcl

__all__ = ["ListNode", "Node", "ObjectNode", "ReadOnlyNode", "ValueNode", "parse_hcl"]
