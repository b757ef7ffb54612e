# SPDX-License-Identifier: Apache-2.0
"""Notifications: events, routes, and receivers such as Slack, Teams, e-mail and webhooks."""
