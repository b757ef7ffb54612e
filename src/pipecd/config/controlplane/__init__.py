# SPDX-License-Identifier: Apache-2.0
"""The kind ControlPlane: where a control plane keeps things and who may sign in."""
