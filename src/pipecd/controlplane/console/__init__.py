# SPDX-License-Identifier: Apache-2.0
"""The door for people: pages, sign-in and live updates."""
