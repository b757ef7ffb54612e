# SPDX-License-Identifier: Apache-2.0
"""The vocabulary: statuses, transitions, ids, errors; pure functions over messages."""
