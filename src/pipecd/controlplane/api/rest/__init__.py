# SPDX-License-Identifier: Apache-2.0
"""The door for programs that speak JSON over HTTP: the calls of APIService under addresses."""

from pipecd.controlplane.api.rest.door import PREFIX, create_rest

__all__ = ["PREFIX", "create_rest"]
