# SPDX-License-Identifier: Apache-2.0
"""Pure decisions: trigger rules, queue, strategy, stages, rollback. Does no IO."""
