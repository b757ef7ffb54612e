# SPDX-License-Identifier: Apache-2.0
"""A Terraform application and its piped in both generations of configuration."""

import json
from collections.abc import Mapping
from typing import Any

from pipecd.model.application import ApplicationKind
from pipecd.proto.model import common_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets

GENERATIONS = ("first", "second")


def piped_entry(generation: str, config: Mapping[str, Any]) -> str:
    """Returns what the file of piped has about Terraform: the target `here`."""
    target = {"name": "here", "config": config}
    if generation == "first":
        return f"  platformProviders: [{json.dumps({**target, 'type': 'TERRAFORM'})}]\n"
    return f"  plugins: [{json.dumps({'name': 'terraform', 'deployTargets': [target]})}]\n"


def application_draft(generation: str, piped_id: str) -> Application:
    """Returns the application `shop` to register."""
    draft = Application(name="shop", piped_id=piped_id)
    if generation == "first":
        draft.kind = common_pb2.ApplicationKind.ValueType(ApplicationKind.TERRAFORM)
        draft.platform_provider = "here"
    else:
        chosen = DeployTargets(deploy_targets=["here"])
        draft.deploy_targets_by_plugin["terraform"].CopyFrom(chosen)
    return draft


def application_config(
    generation: str, section: Mapping[str, Any], spec: Mapping[str, Any] | None = None
) -> str:
    """Returns the file of the application, with a section for Terraform and the rest of `spec`."""
    common = {"name": "shop", **(spec or {})}
    if generation == "first":
        kind, specific = "TerraformApp", {"input": {**section, "autoRollback": True}}
    else:
        kind, specific = "Application", {"plugins": {"terraform": section}}
    config = {"apiVersion": "pipecd.dev/v1beta1", "kind": kind, "spec": {**common, **specific}}
    return json.dumps(config)
