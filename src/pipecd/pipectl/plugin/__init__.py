# SPDX-License-Identifier: Apache-2.0
"""`pipectl plugin`: begin, check and publish a plugin, without a control plane."""
