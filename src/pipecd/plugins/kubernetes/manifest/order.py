# SPDX-License-Identifier: Apache-2.0
"""In which order objects are applied: what others need comes first."""

from collections.abc import Sequence
from itertools import groupby

from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import order_of

# Kinds of one line do not need each other and are applied at the same time.
_RANKS: tuple[tuple[str, ...], ...] = (
    ("Namespace",),
    ("CustomResourceDefinition", "PriorityClass", "StorageClass", "IngressClass", "RuntimeClass"),
    ("ResourceQuota", "LimitRange", "ServiceAccount", "ConfigMap", "Secret", "PersistentVolume"),
    ("ClusterRole", "Role", "PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget"),
    ("ClusterRoleBinding", "RoleBinding"),
    ("Service",),
    (
        *("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Pod"),
        *("Job", "CronJob"),
    ),
)
_RANK_OF = {kind: rank for rank, kinds in enumerate(_RANKS) for kind in kinds}
# An admission webhook or an aggregated API may answer for everything else: it comes when its
# workload is there.
_LAST = frozenset({"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})


def rank(manifest: Manifest) -> int:
    """Returns the place of a kind; kinds nobody knows come after the workloads."""
    if manifest.kind in _LAST:
        return len(_RANKS) + 1
    return _RANK_OF.get(manifest.kind, len(_RANKS))


def waves(manifests: Sequence[Manifest]) -> list[list[Manifest]]:
    """Returns groups to apply one after the other, a group at the same time.

    The order that users write on objects counts more than the kind.
    """

    def place(manifest: Manifest) -> tuple[int, int]:
        return order_of(manifest), rank(manifest)

    return [list(group) for _, group in groupby(sorted(manifests, key=place), key=place)]
