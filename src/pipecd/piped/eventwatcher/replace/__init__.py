# SPDX-License-Identifier: Apache-2.0
"""Puts a new value into a file and changes nothing else in it."""
