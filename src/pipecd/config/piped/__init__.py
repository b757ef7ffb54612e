# SPDX-License-Identifier: Apache-2.0
"""The kind Piped: what an agent is told about itself, Git, plugins and whom to notify."""
