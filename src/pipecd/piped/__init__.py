# SPDX-License-Identifier: Apache-2.0
"""The agent beside the workloads; rooms in the order a deployment passes them."""
