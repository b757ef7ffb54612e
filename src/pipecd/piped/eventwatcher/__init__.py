# SPDX-License-Identifier: Apache-2.0
"""An event arrives, a file is edited, the commit is pushed."""
