# SPDX-License-Identifier: Apache-2.0
"""Encryption of application secrets and of the control plane, keys, tokens."""
