# SPDX-License-Identifier: Apache-2.0
"""The door for Git hosts: a signed push becomes a wake-up."""
