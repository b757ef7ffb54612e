# SPDX-License-Identifier: Apache-2.0
"""Child processes, locks on directories and atomic writes of files."""
