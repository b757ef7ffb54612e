# SPDX-License-Identifier: Apache-2.0
"""A project moves from one control plane to another."""

import json
from pathlib import Path
from typing import Any

from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.piped_pb2 import Piped
from servers.control_plane import StartControlPlane


async def test_a_project_moves_with_its_pipeds_and_applications(
    start_plane: StartControlPlane, typed_at: Any, piped_with_repository: Any, tmp_path: Path
) -> None:
    kept, keys = tmp_path / "backup.json", tmp_path / "keys.json"
    async with start_plane() as plane:
        typed, old = typed_at(plane), await piped_with_repository(plane)
        for name, labels in (("web", "team=a"), ("api", "team=b"), ("old", "team=a")):
            add = (
                f"application add --app-name {name} --app-kind KUBERNETES --piped-id {old}"
                f" --platform-provider prod --repo-id repo --app-dir apps/{name} --labels {labels}"
            )
            id_ = (await typed(add))[2].split("id = ")[1].strip()
        assert (await typed(f"application disable --app-id {id_}"))[0] == 0

        def aim(application: Application) -> None:
            targets = DeployTargets(deploy_targets=["here", "there"])
            application.deploy_targets_by_plugin["kubernetes"].CopyFrom(targets)

        await plane.running.stores.applications.update(id_, aim)
        assert (await typed(f"transfer backup --output-file {kept}"))[0] == 0
    document = json.loads(kept.read_text())
    assert (document["version"], kept.stat().st_mode & 0o777) == ("1", 0o600)
    assert [p["id"] for p in document["pipeds"]] == [old]
    assert sorted(a["name"] for a in document["applications"]) == ["api", "old", "web"]

    async with start_plane() as plane:
        typed = typed_at(plane)
        restore = f"transfer restore piped --input-file {kept} --output-file {keys}"
        assert (await typed(restore))[0] == 0
        (mapping,) = json.loads(keys.read_text())["piped_mappings"]
        assert (mapping["old_piped_id"], keys.stat().st_mode & 0o777) == (old, 0o600)
        new = mapping["new_piped_id"]

        again = f"transfer restore application --input-file {kept} --piped-id-mapping-file {keys}"
        code, _, err = await typed(again)
        assert (code, "3 application(s) failed to restore" in err) == (1, True), err

        def connect(piped: Piped) -> None:
            piped.repositories.add(id="repo", remote="file:///tmp/repo", branch="main")

        await plane.running.stores.pipeds.update(new, connect)
        assert (await typed(f"{again} --labels team:a"))[0] == 0
        enabled = json.loads((await typed(f"application list --piped-id {new}"))[1])["applications"]
        assert [(a["name"], a["labels"], a["piped_id"]) for a in enabled] == [
            ("web", {"team": "a"}, new)
        ]
        (disabled,) = json.loads((await typed(f"application list --disabled --piped-id {new}"))[1])[
            "applications"
        ]
        targets = disabled["deploy_targets_by_plugin"]["kubernetes"]["deploy_targets"]
        assert (disabled["name"], targets) == ("old", ["here", "there"])


async def test_mistakes_are_reported(
    start_plane: StartControlPlane, typed_at: Any, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    async with start_plane() as plane:
        typed = typed_at(plane)
        code, _, err = await typed(f"transfer backup --output-file {bad}")
        assert (code, "no piped for backup" in err) == (1, True)
        assert not bad.exists()
        for text, error_text in (
            ("{", "is not JSON"),
            ("[]", "is not what pipectl transfer writes"),
            ('{"version": "9"}', "only '1' is supported"),
            (
                '{"piped_mappings": []}',
                "is not a backup; name a file that `pipectl transfer backup` wrote",
            ),
            ('{"version": "1", "pipeds": 3}', "its pipeds are not a list of objects"),
            ('{"version": "1", "pipeds": ["p"]}', "its pipeds are not a list of objects"),
            ('{"version": "1", "pipeds": [{"id": []}]}', "its pipeds cannot be read"),
        ):
            bad.write_text(text)
            code, _, err = await typed(f"transfer restore piped --input-file {bad}")
            assert (code, error_text in err) == (1, True), err
        code, _, err = await typed(f"transfer restore piped --input-file {tmp_path / 'none'}")
        assert (code, "cannot read" in err) == (1, True)


async def test_a_backup_needs_no_time_and_no_applications(
    start_plane: StartControlPlane, typed_at: Any, tmp_path: Path
) -> None:
    backup, keys = tmp_path / "backup.json", tmp_path / "keys.json"
    # Upstream's pipectl restores such a file.
    backup.write_text('{"version": "1", "pipeds": [{"id": "old", "name": "p"}]}')
    async with start_plane() as plane:
        typed = typed_at(plane)
        line = f"transfer restore piped --input-file {backup} --output-file {keys}"
        assert (await typed(line))[0] == 0
        line = f"transfer restore application --input-file {backup} --piped-id-mapping-file {keys}"
        assert (await typed(line))[0] == 0
