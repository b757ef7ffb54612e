# SPDX-License-Identifier: Apache-2.0
"""Compares functions: the live one with Git (drift), and the running with a new one (preview)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pipecd.plugins.aws_lambda.config import LambdaFunction
from pipecd.plugins.aws_lambda.manifest import FUNCTION
from pipecd.sdk import Preview, SyncState, SyncStatus
from pipecd.sdk.aws import ownership_tags
from pipecd.sdk.config import plain
from pipecd.sdk.diff import Options, compare, render
from pipecd.sdk.drift import drift_details
from pipecd.sdk.unstructured import Body, at, map_at, text_at

# Fields that Git leaves open are no drift.
_LIVE_DIFF = Options(equate_empty=True, subset=True, numeric_strings=True)
_GIT_DIFF = Options(equate_empty=True, numeric_strings=True)
# AWS does not tell where the code of a function comes from.
_UNKNOWN_TO_AWS = ("source", "s3Bucket", "s3Key", "s3ObjectVersion")
_OWN_TAGS = ownership_tags(piped_id="", application_id="", commit="").keys()


def drift(
    live: Mapping[str, Any],
    declared: LambdaFunction,
    commit: str,
    ignored: Mapping[str, Iterable[str]],
) -> SyncState:
    """Compares a live function with a commit; `ignored` has field paths by the key of an object."""
    options = replace(_LIVE_DIFF, ignored=FUNCTION.ignored_paths(ignored, declared.name))
    nodes = compare({"spec": live_manifest(live)}, {"spec": _declared(declared)}, options)
    if not nodes:
        return SyncState(SyncStatus.SYNCED)
    # Live variables may be secrets of an older commit.
    text = render(nodes, masked=("spec.environments",))
    details = drift_details(commit, f"{text}\n")
    return SyncState(SyncStatus.OUT_OF_SYNC, "The function manifest is not synced", details)


def preview(target: str, running: LambdaFunction | None, desired: LambdaFunction) -> Preview:
    """Compares the running manifest with that of a change."""
    before = _with_name(running) if running else None
    return FUNCTION.preview(target, before, _with_name(desired), _GIT_DIFF)


def _with_name(function: LambdaFunction) -> tuple[str, Body]:
    return function.name, {"spec": plain(function)}


def live_manifest(live: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest that a live function would have, without the origin of its code."""
    shown = map_at(live, "Configuration")
    vpc = map_at(shown, "VpcConfig")
    tags = map_at(live, "Tags")
    return {
        "name": text_at(shown, "FunctionName"),
        "role": text_at(shown, "Role"),
        "image": text_at(live, "Code", "ImageUri"),
        "handler": text_at(shown, "Handler"),
        "runtime": text_at(shown, "Runtime"),
        "architectures": [{"name": name} for name in sorted(shown.get("Architectures") or ())],
        "ephemeralStorage": {"size": at(shown, "EphemeralStorage", "Size")},
        "memory": shown.get("MemorySize"),
        "timeout": shown.get("Timeout"),
        "tags": {key: value for key, value in tags.items() if key not in _OWN_TAGS},
        "environments": dict(map_at(shown, "Environment", "Variables")),
        "vpcConfig": {
            "securityGroupIds": sorted(vpc.get("SecurityGroupIds") or ()),
            "subnetIds": sorted(vpc.get("SubnetIds") or ()),
        },
        "layers": [text_at(layer, "Arn") for layer in shown.get("Layers") or ()],
    }


def _declared(function: LambdaFunction) -> dict[str, Any]:
    declared = plain(function)
    for key in _UNKNOWN_TO_AWS:
        declared.pop(key, None)
    names = sorted(architecture.name for architecture in function.architectures)
    declared["architectures"] = [{"name": name} for name in names]
    if not names:
        del declared["architectures"]
    if function.vpc_config is not None:
        declared["vpcConfig"] = {
            "securityGroupIds": sorted(function.vpc_config.security_group_ids),
            "subnetIds": sorted(function.vpc_config.subnet_ids),
        }
    return {key: value for key, value in declared.items() if value != ""}
