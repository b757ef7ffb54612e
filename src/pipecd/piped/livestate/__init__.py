# SPDX-License-Identifier: Apache-2.0
"""Live states of applications, read from plugins, compared with Git and reported."""
