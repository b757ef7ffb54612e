# SPDX-License-Identifier: Apache-2.0
"""gRPC server reflection, for tools like grpcurl.

Only this module needs the extra `reflection`; it is imported when reflection is enabled.
"""

from collections.abc import Iterable
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

_METHOD = "ServerReflectionInfo"
_DESCRIBED = "grpc.reflection.v1alpha.ServerReflection"
# Both versions have the same messages; newer tools try the second one first.
SERVICES = (_DESCRIBED, "grpc.reflection.v1.ServerReflection")


def reflection(services: Iterable[str]) -> grpc.GenericRpcHandler:
    """Returns the handler that describes these services and reflection itself."""
    servicer: Any = ReflectionServicer([*services, _DESCRIBED])
    request: Any = reflection_pb2.ServerReflectionRequest
    response: Any = reflection_pb2.ServerReflectionResponse
    method: Any = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )
    return _Reflection({f"/{service}/{_METHOD}": method for service in SERVICES})


class _Reflection(grpc.GenericRpcHandler):
    def __init__(self, methods: dict[str, Any]) -> None:
        self._methods = methods

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        return self._methods.get(handler_call_details.method)
