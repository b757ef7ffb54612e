# SPDX-License-Identifier: Apache-2.0
"""What people read: pure functions from documents to the words and marks on a page."""
