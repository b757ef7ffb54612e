# SPDX-License-Identifier: Apache-2.0
"""A plan as a difference between Git and the infrastructure."""

from pipecd.plugins.terraform.drift import render_plan

PLAN = """\
aws_x.y: Refreshing state... [id=1]

Terraform will perform the following actions:

  # aws_x.y will be updated in-place
  ~ resource "aws_x" "y" {
        id   = "1"
      ~ name = "a" -> "b"
      ~ list = [
          + "x",
            # (1 unchanged element hidden)
        ]
      - tags = {
          - "k" = "v"
        } -> null
    }

  # aws_z.w will be created
  + resource "aws_z" "w" {
      + id = (known after apply)
    }

Plan: 1 to add, 1 to change, 0 to destroy.

Changes to Outputs:
  + x = 1
"""

# The rendering of upstream's piped.
RENDERED = """\
  # aws_x.y will be updated in-place
    resource "aws_x" "y" {
        id   = "1"
~       name = "a" -> "b"
~       list = [
+           "x",
            # (1 unchanged element hidden)
~       ]
-       tags = {
-           "k" = "v"
-       } -> null
    }
  # aws_z.w will be created
    resource "aws_z" "w" {
+       id = (known after apply)
    }
Plan: 1 to add, 1 to change, 0 to destroy.
"""


def test_signs_are_in_the_first_column() -> None:
    assert render_plan(PLAN) == RENDERED


def test_a_plan_without_actions_is_empty() -> None:
    assert render_plan("No changes.\n") == ""
