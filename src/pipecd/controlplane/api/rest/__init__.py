# SPDX-License-Identifier: Apache-2.0
"""REST: the RPCs of APIService as JSON over HTTP, described by an OpenAPI document."""

from pipecd.controlplane.api.rest.app import PREFIX, create_rest

__all__ = ["PREFIX", "create_rest"]
