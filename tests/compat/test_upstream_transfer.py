# SPDX-License-Identifier: Apache-2.0
"""Upstream's pipectl and ours write the same backups and the same rewritten files."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.proto.model.application_pb2 import Application
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPECTL

pytestmark = pytest.mark.slow


OLD = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: shop
  labels: {team: sales}
  description: sells things
  input: {namespace: shop, helmChart: {path: chart}}
  service: {name: shop}
  trafficRouting: {method: podselector}
  trigger: {onCommit: {paths: [lib/**]}}
  pipeline:
    stages:
      - name: K8S_CANARY_ROLLOUT
        with: {replicas: 10%}
      - name: ANALYSIS
        with: {duration: 10m, timeout: 20m, skipOn: {paths: [docs/**]}}
"""


async def test_backups_are_the_same_and_each_restores_those_of_the_other(
    open_installation: OpenInstallation, upstream_pipectl: Path, tmp_path: Path
) -> None:
    async with open_installation() as installation:
        agent = await installation.register_piped("one")
        draft = Application(name="cart", piped_id=agent.id, labels={"env": "dev"})
        await installation.add_application("cart", draft)
        how = installation.pipectl_flags()
        kept: dict[Path, Any] = {}
        for program in (OUR_PIPECTL, upstream_pipectl):
            file = tmp_path / f"{len(kept)}.json"
            done = await installation.run(
                program, "transfer", "backup", "--output-file", str(file), *how
            )
            assert done.code == 0, done
            kept[file] = json.loads(file.read_text())
            del kept[file]["created_at"]
        ours, theirs = kept
        assert kept[ours] == kept[theirs]
        for program, file in ((OUR_PIPECTL, theirs), (upstream_pipectl, ours)):
            line = ("transfer", "restore", "piped", "--input-file", str(file))
            done = await installation.run(program, *line, *how)
            assert done.code == 0, done
            (mapping,) = json.loads(done.out)["piped_mappings"]
            assert mapping["old_piped_id"] == agent.id


def test_files_are_rewritten_alike(upstream_pipectl: Path, tmp_path: Path) -> None:
    documents: list[Any] = []
    for program in (OUR_PIPECTL, upstream_pipectl):
        file = tmp_path / "app.pipecd.yaml"
        file.write_text(OLD)
        line = [program, "migrate", "application-config", "--config-files", file]
        subprocess.run(line, check=True, capture_output=True)
        documents.append(yaml.safe_load(file.read_text()))
    assert documents[0] == documents[1]
