# SPDX-License-Identifier: Apache-2.0
"""The door for gRPC-Web clients: WebService, one module per noun."""
