# SPDX-License-Identifier: Apache-2.0
"""Plans a deployment: its versions, and pipeline or quick sync by the images of the containers."""

from collections.abc import Mapping

from pipecd.plugins.ecs.definitions import TaskDefinition
from pipecd.sdk import Strategy, SyncStrategy, Version
from pipecd.sdk.images import Image


def image_versions(task: TaskDefinition) -> list[Version]:
    """Returns every image once as a version, in the order of the containers."""
    unique = dict.fromkeys(task.images.values())
    return [Version(image.tag, name=image.name, url=image.reference) for image in unique]


def decide_strategy(running: TaskDefinition | None, target: TaskDefinition) -> Strategy:
    """Returns the pipeline if the image of a container changes, else quick sync.

    `running` is None if its file cannot be read.
    """
    if running is None:
        return Strategy(SyncStrategy.PIPELINE, "Sync with the specified pipeline")
    changes = sorted(_image_changes(running.images, target.images))
    if changes:
        return Strategy(
            SyncStrategy.PIPELINE, f"Sync progressively because of updating {', '.join(changes)}"
        )
    return Strategy(
        SyncStrategy.QUICK_SYNC, "Quick sync because no container image change was detected"
    )


def decide_v0_strategy(running: TaskDefinition | None, target: TaskDefinition) -> Strategy:
    """Returns the pipeline, which an ECSApp always uses, with the versions that change."""
    before = next(iter(running.images.values()), None) if running else None
    after = next(iter(target.images.values()), None)
    if before is None or after is None:
        return Strategy(SyncStrategy.PIPELINE, "Sync with the specified pipeline")
    return Strategy(
        SyncStrategy.PIPELINE,
        f"Sync with pipeline to update image from {before.tag} to {after.tag}",
    )


def _image_changes(running: Mapping[str, Image], target: Mapping[str, Image]) -> list[str]:
    changes = [f"removed container {name}" for name in running if name not in target]
    for name, image in target.items():
        before = running.get(name)
        if before is None:
            changes.append(f"added container {name} with image {image.reference}")
        elif before.name == image.name and before != image:
            changes.append(f"image {image.name} from {before.tag} to {image.tag}")
        elif before != image:
            changes.append(f"image {before.reference} to {image.reference}")
    return changes
