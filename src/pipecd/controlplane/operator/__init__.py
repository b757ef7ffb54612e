# SPDX-License-Identifier: Apache-2.0
"""What whoever runs a control plane sees of it: its projects, and its figures."""
