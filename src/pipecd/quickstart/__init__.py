# SPDX-License-Identifier: Apache-2.0
"""`pipecd quickstart`: control plane, piped and sample application in one process."""
