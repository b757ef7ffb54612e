# SPDX-License-Identifier: Apache-2.0
"""The options of the Kubernetes stages.

Without a `suffix` the name of a variant is decided by the application (its `suffix`).
"""

from typing import Protocol, runtime_checkable

from pipecd.sdk.config import Duration, Percentage, Replicas, Spec


class ReadyOptions(Spec):
    """A stage that brings objects; without `ready_within` it ends when the cluster took them."""

    ready_within: Duration = Duration(0)


class SyncOptions(ReadyOptions):
    """K8S_SYNC and quick sync."""

    add_variant_label_to_selector: bool = False
    prune: bool = False


class PatchTarget(Spec):
    """The manifest a patch changes, or a document kept in one of its text fields."""

    kind: str = ""
    name: str = ""
    document_root: str = ""


class PatchOp(Spec):
    """One replacement; only `yaml-replace` exists."""

    op: str = "yaml-replace"
    path: str = ""
    value: str = ""


class Patch(Spec):
    """Changes to one manifest of the canary."""

    target: PatchTarget = PatchTarget()
    ops: tuple[PatchOp, ...] = ()


class PrimaryRolloutOptions(ReadyOptions):
    """K8S_PRIMARY_ROLLOUT."""

    suffix: str = ""
    create_service: bool = False
    add_variant_label_to_selector: bool = False
    prune: bool = False


class CanaryRolloutOptions(ReadyOptions):
    """K8S_CANARY_ROLLOUT."""

    replicas: Replicas = Replicas(0)
    suffix: str = ""
    create_service: bool = False
    patches: tuple[Patch, ...] = ()


class BaselineRolloutOptions(ReadyOptions):
    """K8S_BASELINE_ROLLOUT."""

    replicas: Replicas = Replicas(0)
    suffix: str = ""
    create_service: bool = False


class TrafficRoutingOptions(Spec):
    """K8S_TRAFFIC_ROUTING: one variant gets `all`, or each its share."""

    all: str = ""
    primary: Percentage = Percentage(0)
    canary: Percentage = Percentage(0)
    baseline: Percentage = Percentage(0)

    def shares(self) -> tuple[int, int, int]:
        """Return the percentages of primary, canary and baseline."""
        match self.all:
            case "primary":
                return 100, 0, 0
            case "canary":
                return 0, 100, 0
            case "baseline":
                return 0, 0, 100
            case _:
                return int(self.primary), int(self.canary), int(self.baseline)


@runtime_checkable
class Limited(Protocol):
    """The options of a stage that may be limited to some deploy targets."""

    multi_targets: tuple[str, ...]


class MultiOptions(Spec):
    """A multi-cluster stage with nothing but its deploy targets; none named means all."""

    multi_targets: tuple[str, ...] = ()


class MultiSyncOptions(SyncOptions):
    """K8S_MULTI_SYNC."""

    multi_targets: tuple[str, ...] = ()


class MultiPrimaryRolloutOptions(PrimaryRolloutOptions):
    """K8S_MULTI_PRIMARY_ROLLOUT."""

    multi_targets: tuple[str, ...] = ()


class MultiCanaryRolloutOptions(CanaryRolloutOptions):
    """K8S_MULTI_CANARY_ROLLOUT."""

    multi_targets: tuple[str, ...] = ()


class MultiBaselineRolloutOptions(BaselineRolloutOptions):
    """K8S_MULTI_BASELINE_ROLLOUT."""

    multi_targets: tuple[str, ...] = ()


class MultiTrafficRoutingOptions(TrafficRoutingOptions):
    """K8S_MULTI_TRAFFIC_ROUTING."""

    multi_targets: tuple[str, ...] = ()
