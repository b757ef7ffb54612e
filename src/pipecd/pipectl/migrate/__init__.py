# SPDX-License-Identifier: Apache-2.0
"""From the first generation to the second: files of applications and what the database knows."""
