# SPDX-License-Identifier: Apache-2.0
"""Generated from the .proto files beside it by `make proto`; never edited."""
