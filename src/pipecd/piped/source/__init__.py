# SPDX-License-Identifier: Apache-2.0
"""A commit as a ready directory: checkout, decrypt, attach, template."""
