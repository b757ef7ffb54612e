# SPDX-License-Identifier: Apache-2.0
"""A control plane, a piped and a sample repository on one machine, in one process."""
