# SPDX-License-Identifier: Apache-2.0
"""PipeCD: one continuous-delivery system for every kind of application."""
