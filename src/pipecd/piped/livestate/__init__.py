# SPDX-License-Identifier: Apache-2.0
"""What runs for each application and how it compares with Git, asked of the plugins."""
