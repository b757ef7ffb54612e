# SPDX-License-Identifier: Apache-2.0
"""What the stages of the pictured project have logged; `{name}` is the application."""

from pipecd.proto.model.logblock_pb2 import ERROR, INFO, SUCCESS

CANARY_LOG = (
    (INFO, "Loading manifests at commit {commit} for handling"),
    (INFO, "Successfully loaded 7 manifests"),
    (INFO, "Start rolling out CANARY variant..."),
    (INFO, "Generating canary manifests for application {name}"),
    (INFO, "Start applying 3 manifests of the canary variant"),
    (SUCCESS, "- applied manifest: name={name}-canary, kind=Deployment, namespace=shop"),
    (SUCCESS, "- applied manifest: name={name}-canary, kind=Service, namespace=shop"),
    (ERROR, "pod {name}-canary-6c9f: Readiness probe failed: connection refused"),
    (INFO, "1 of 2 pods of the canary are ready"),
    (ERROR, "pod {name}-canary-6c9f: Readiness probe failed: connection refused"),
    (INFO, "2 of 2 pods of the canary are ready"),
    (SUCCESS, "Successfully rolled out CANARY variant"),
)
ANALYSIS_LOG = (
    (INFO, "Analysis of 10m with 2 metrics and the logs starts"),
    (INFO, "error-rate: 0.21 %, expected at most 1 %"),
    (INFO, "latency-p99: 182 ms, expected at most 250 ms"),
    (INFO, "error-rate: 0.34 %, expected at most 1 %"),
    (INFO, "latency-p99: 190 ms, expected at most 250 ms"),
)
# An analysis goes on for a while after its first error.
FAILED_ANALYSIS_LOG = (
    *ANALYSIS_LOG[:4],
    (ERROR, "error-rate: 4.1 %, expected at most 1 % (1 of 3 failures)"),
    *((INFO, f"latency-p99: {187 + n} ms, expected at most 250 ms") for n in range(7)),
    (ERROR, "error-rate: 3.9 %, expected at most 1 % (2 of 3 failures)"),
    *((INFO, f"latency-p99: {201 + n} ms, expected at most 250 ms") for n in range(7)),
    (ERROR, "error-rate: 4.4 %, expected at most 1 % (3 of 3 failures)"),
)
APPROVAL_LOG = (
    (INFO, "Waiting for 2 approvals from: ann, kenji, maria"),
    (INFO, "Got approval from kenji (1 of 2)"),
)
