# SPDX-License-Identifier: Apache-2.0
"""What a piped sees of a repository that is somewhere else: its address, its branch, its ssh."""
