# SPDX-License-Identifier: Apache-2.0
"""The door for pipectl and API keys: APIService."""
