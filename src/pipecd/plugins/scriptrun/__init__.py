# SPDX-License-Identifier: Apache-2.0
"""The SCRIPT_RUN stage: runs a script of the application."""
