# SPDX-License-Identifier: Apache-2.0
"""Insights: the file formats, DORA metrics and time series behind the charts, without I/O."""
