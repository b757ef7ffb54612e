# SPDX-License-Identifier: Apache-2.0
"""What a deployment changes: the versions of its artifacts before and after, commits, targets."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipecd.controlplane.console.deploy_targets import target_names
from pipecd.controlplane.console.formatting import safe_link
from pipecd.model.deployment import ArtifactKind
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment

_KINDS = {
    ArtifactKind.UNKNOWN: "Artifact",
    ArtifactKind.CONTAINER_IMAGE: "Container image",
    ArtifactKind.S3_OBJECT: "S3 object",
    ArtifactKind.GIT_SOURCE: "Git source",
    ArtifactKind.TERRAFORM_MODULE: "Terraform module",
}


@dataclass(frozen=True)
class VersionChange:
    """One artifact before and after; empty texts where it is new or gone."""

    kind: str
    name: str
    before: str
    after: str
    url: str = ""

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class ChangesView:
    """What a deployment changes; `previous_id` is empty if nothing ran before.

    Changed artifacts come first. `targets_before` is empty if the targets are the same.
    `unknown` says why it is not known what ran before.
    """

    versions: tuple[VersionChange, ...]
    previous_id: str = ""
    commit_before: str = ""
    targets_before: str = ""
    unknown: str = ""

    @property
    def changed(self) -> tuple[VersionChange, ...]:
        """The artifacts that surely change."""
        if self.unknown:
            return ()
        return tuple(version for version in self.versions if version.is_changed)

    @property
    def is_first(self) -> bool:
        """Whether no deployment of the application had succeeded before."""
        return not (self.previous_id or self.unknown)


def deployment_changes(
    deployment: Deployment, previous: Deployment | None, *, is_denied: bool = False
) -> ChangesView:
    """The changes from the deployment that ran before to this one.

    `is_denied` means that the user may not list the deployments before.
    """
    before = _by_artifact(previous.versions if previous else ())
    after = _by_artifact(deployment.versions)
    # Before it is planned nothing is known, which is not a removal.
    keys = dict.fromkeys([*after, *(before if after else ())])
    versions = tuple(_change(key, before.get(key), after.get(key)) for key in keys)
    targets = target_names(previous) if previous else ""
    return ChangesView(
        versions=tuple(sorted(versions, key=lambda version: not version.is_changed)),
        previous_id=previous.id if previous else "",
        commit_before=previous.trigger.commit.hash[:7] if previous else "",
        targets_before="" if targets == target_names(deployment) else targets,
        unknown="" if previous else _why_unknown(deployment, is_denied=is_denied),
    )


def _why_unknown(deployment: Deployment, *, is_denied: bool) -> str:
    if is_denied:
        return "Your roles do not allow listing deployments, so what ran before is not shown."
    if deployment.running_commit_hash:
        # The piped knew a deployment that the user cannot see, or that is not stored any more.
        return "The deployment before is not among those you can see."
    return ""


_Key = tuple[int, str, int]


def _by_artifact(versions: Iterable[ArtifactVersion]) -> dict[_Key, ArtifactVersion]:
    """By kind, name and, for several versions of the same name, their order."""
    found: dict[_Key, ArtifactVersion] = {}
    for version in versions:
        # What pipeds send if a manifest has no version.
        if not version.version or version.version == "unknown":
            continue
        same = (key for key, each in found.items() if key[:2] == (version.kind, version.name)
                and each.version == version.version)  # fmt: skip
        if next(same, None) is None:
            number = sum(key[:2] == (version.kind, version.name) for key in found)
            found[version.kind, version.name, number] = version
    return found


def _change(
    key: _Key, before: ArtifactVersion | None, after: ArtifactVersion | None
) -> VersionChange:
    return VersionChange(
        kind=_KINDS[ArtifactKind(key[0])] if key[0] in set(ArtifactKind) else "Artifact",
        name=key[1],
        before=before.version if before else "",
        after=after.version if after else "",
        url=safe_link(after.url) if after else "",
    )
