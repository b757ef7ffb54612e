# SPDX-License-Identifier: Apache-2.0
"""The pipeds of a project, on its settings pages."""
