# SPDX-License-Identifier: Apache-2.0
"""The APIs of the control plane: three gRPC services, gRPC-Web, REST, and the gateway's duties."""
