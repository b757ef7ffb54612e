# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks: databases, a control plane, its content, pipeds and gRPC clients."""
