# SPDX-License-Identifier: Apache-2.0
"""For the operator of a control plane: pages to manage projects, and metrics."""
