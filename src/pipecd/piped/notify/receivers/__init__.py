# SPDX-License-Identifier: Apache-2.0
"""Those who can be told, one module each: how a letter looks to them and how it gets there."""
