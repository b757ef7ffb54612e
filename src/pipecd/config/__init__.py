# SPDX-License-Identifier: Apache-2.0
"""Every configuration kind of both generations as typed, frozen values."""
