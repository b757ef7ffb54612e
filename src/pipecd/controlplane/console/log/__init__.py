# SPDX-License-Identifier: Apache-2.0
"""Stage logs as people read them: numbered lines and the colours of a terminal."""
