# SPDX-License-Identifier: Apache-2.0
"""The command line of the API, one module per command group."""
