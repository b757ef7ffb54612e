# SPDX-License-Identifier: Apache-2.0
"""What pipeds report about their applications and deployments, and keep for later."""
