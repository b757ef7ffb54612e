# SPDX-License-Identifier: Apache-2.0
"""Git remotes that the content of a repository may name."""

from pipecd.model.giturl import is_network_remote, redact

__all__ = ["is_network_remote", "redact"]
