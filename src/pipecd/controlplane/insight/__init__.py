# SPDX-License-Identifier: Apache-2.0
"""The pure sums behind the charts."""
