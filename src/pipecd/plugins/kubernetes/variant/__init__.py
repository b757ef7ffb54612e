# SPDX-License-Identifier: Apache-2.0
"""Makes the manifests of canary and baseline, and divides the traffic among variants."""
