# SPDX-License-Identifier: Apache-2.0
"""Generated messages and stubs of the control plane services."""
