# SPDX-License-Identifier: Apache-2.0
"""The web console; `app` says how a page is built."""
