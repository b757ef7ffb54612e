# SPDX-License-Identifier: Apache-2.0
"""Whether a program is a plugin: what piped, ours or upstream's, relies on, tried on it."""

from pipecd.sdk.conformance.finding import Finding, Verdict
from pipecd.sdk.conformance.trial import Trial, try_plugin

__all__ = ["Finding", "Trial", "Verdict", "try_plugin"]
