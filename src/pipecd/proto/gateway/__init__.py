# SPDX-License-Identifier: Apache-2.0
"""Messages of a gateway in front of the control plane."""
