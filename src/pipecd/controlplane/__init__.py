# SPDX-License-Identifier: Apache-2.0
"""Where everyone looks: stores what happened, answers pipeds, people and pipectl."""
