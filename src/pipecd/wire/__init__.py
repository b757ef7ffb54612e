# SPDX-License-Identifier: Apache-2.0
"""gRPC servers and channels, credentials, validation, errors and status codes."""
