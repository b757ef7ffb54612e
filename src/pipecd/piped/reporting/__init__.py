# SPDX-License-Identifier: Apache-2.0
"""What piped reports to the control plane beside its deployments."""
