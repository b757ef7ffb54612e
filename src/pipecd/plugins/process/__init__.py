# SPDX-License-Identifier: Apache-2.0
"""Deploys plain programs on the machine piped runs on."""
