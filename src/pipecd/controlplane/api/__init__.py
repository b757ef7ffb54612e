# SPDX-License-Identifier: Apache-2.0
"""The gRPC doors, one package per service."""
