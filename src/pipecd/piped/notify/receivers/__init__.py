# SPDX-License-Identifier: Apache-2.0
"""Notification receivers, one module each: the body of a message and how it is sent."""
