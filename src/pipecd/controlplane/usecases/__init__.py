# SPDX-License-Identifier: Apache-2.0
"""What can be asked of a control plane, one module per noun.

Permission and ownership are checked here, once, for every door.
"""
