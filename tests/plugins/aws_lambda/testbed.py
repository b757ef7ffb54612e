# SPDX-License-Identifier: Apache-2.0
"""An application on Lambda: its commits are directories with a function manifest."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.plugins.aws_lambda.plugin import LambdaPlugin
from pipecd.sdk import DeployTarget, PluginEntry, StageResult
from pipecd.sdk.testing import MemoryHost, StageBench
from servers.amazon import ACCOUNT, REGION, Amazon
from servers.amazon_lambda import LambdaRules

ROLE = f"arn:aws:iam::{ACCOUNT}:role/tests"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/shop"


@dataclass
class Application:
    """The application, deployed by one plugin; its function has a name of its own."""

    name: str
    directory: Path
    plugin: LambdaPlugin
    host: MemoryHost
    amazon: Amazon
    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    target: dict[str, Any] = field(default_factory=dict[str, Any])
    kind: str = "Application"

    @property
    def rules(self) -> LambdaRules:
        rules = self.amazon.rules["lambda"]
        assert isinstance(rules, LambdaRules)
        return rules

    @property
    def aws(self) -> Any:
        return self.amazon.client("lambda")

    def function(self, tag: str = "v1", **more: Any) -> dict[str, Any]:
        """Returns the manifest of a function with an image."""
        spec = {"name": self.name, "role": ROLE, "memory": 128, "timeout": 5}
        if not {"source", "s3Bucket"} & more.keys():
            spec["image"] = f"{IMAGE}:{tag}"
        return {
            "apiVersion": "pipecd.dev/v1beta1",
            "kind": "LambdaFunction",
            "spec": {**spec, **more},
        }

    def commit(
        self,
        commit: str,
        function: dict[str, Any] | str | None = None,
        running: StageBench | None = None,
    ) -> StageBench:
        """Returns a commit with this manifest."""
        directory = self.directory / commit
        directory.mkdir(exist_ok=True)
        content = function if isinstance(function, str) else json.dumps(function or self.function())
        (directory / "function.yaml").write_text(content)
        section = {"plugins": {"lambda": {}}} if self.kind == "Application" else {}
        spec = {"name": "tested", **section, **self.spec}
        config = {"apiVersion": "pipecd.dev/v1beta1", "kind": self.kind, "spec": spec}
        settings = {"region": REGION, "endpoint": self.amazon.url, **self.target}
        return StageBench(
            self.plugin,
            directory,
            entry=PluginEntry("lambda", {}, (DeployTarget("dev", {}, settings),)),
            host=self.host,
            commit=commit,
            config=json.dumps(config),
            running=running,
        )

    async def deploy(self, commit: str, function: dict[str, Any] | None = None) -> StageBench:
        """Deploys a commit by quick sync, as an earlier deployment."""
        bench = self.commit(commit, function)
        result = await bench.run("LAMBDA_SYNC")
        assert result.status.name == "SUCCESS", result.message
        self.host.plugin_metadata.clear()
        self.host.stage_metadata.clear()
        self.amazon.calls.clear()
        return bench

    def configuration(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.aws.get_function_configuration(FunctionName=self.name)
        return shown

    def traffic(self) -> tuple[str, dict[str, float]]:
        """Returns the version of the alias, and the weights of others."""
        alias = self.aws.get_alias(FunctionName=self.name, Name="Service")
        weights = (alias.get("RoutingConfig") or {}).get("AdditionalVersionWeights") or {}
        return alias["FunctionVersion"], dict(weights)

    async def rollback(self, bench: StageBench) -> StageResult:
        return await bench.run("LAMBDA_ROLLBACK", is_rollback=True)
