# SPDX-License-Identifier: Apache-2.0
""" "This changed": signals between the parts and replicas of a control plane."""
