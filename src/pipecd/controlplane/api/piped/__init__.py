# SPDX-License-Identifier: Apache-2.0
"""The door for pipeds: PipedService, one module per noun."""
