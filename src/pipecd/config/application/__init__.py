# SPDX-License-Identifier: Apache-2.0
"""The generic part of application files, equal in both generations."""
