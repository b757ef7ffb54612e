# SPDX-License-Identifier: Apache-2.0
"""What runs in a cluster for an application, how it is, and how it differs from Git."""
