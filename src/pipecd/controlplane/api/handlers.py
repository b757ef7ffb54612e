# SPDX-License-Identifier: Apache-2.0
"""The base of the RPC handlers of all three gRPC services."""

from pipecd.controlplane.usecases import UseCases


class RpcHandlers:
    """Handlers of some RPCs of a service: a method for each, with the name of the RPC."""

    def __init__(self, cases: UseCases) -> None:
        self._cases = cases
