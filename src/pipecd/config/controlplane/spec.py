# SPDX-License-Identifier: Apache-2.0
"""The configuration of a control plane."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from pipecd.config.controlplane.insight import InsightCollectorSpec
from pipecd.config.controlplane.signin import ProjectSpec, SharedSSOConfigSpec, camel_cased
from pipecd.config.controlplane.storage import DatastoreSpec, FilestoreSpec
from pipecd.config.duration import Duration
from pipecd.config.rule import refuse
from pipecd.config.spec import Spec
from pipecd.config.yamltree import Map, Node


class CacheSpec(Spec):
    """How long cached values live."""

    ttl: Duration = Duration(5 * 60)

    @field_validator("ttl")
    @classmethod
    def _not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("must be greater than 0")
        return value


class ControlPlaneSpec(Spec):
    """Everything a control plane is told by its file; ports and keys are told by flags."""

    address: str = ""
    state_key: Annotated[str, Field(repr=False)] = ""
    datastore: DatastoreSpec
    filestore: FilestoreSpec
    cache: CacheSpec = CacheSpec()
    insight_collector: InsightCollectorSpec = InsightCollectorSpec()
    projects: tuple[ProjectSpec, ...] = ()
    shared_sso_configs: Annotated[
        tuple[SharedSSOConfigSpec, ...], Field(alias="sharedSSOConfigs")
    ] = ()

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        projects = [project.id for project in self.projects]
        sso = [config.name for config in self.shared_sso_configs]
        refuse(
            self,
            *(
                (id in projects[:i], ("projects", i, "id"), f"two projects have the id {id}")
                for i, id in enumerate(projects)
            ),
            *(
                (
                    name in sso[:i],
                    ("sharedSSOConfigs", i, "name"),
                    f"two shared SSO configs are named {name}",
                )
                for i, name in enumerate(sso)
            ),
        )
        return self


def camel_cased_sign_ins(spec: Node) -> Node:
    """Return the `spec` of a file with the shared sign-ins in camelCase, as the types know them."""
    if not isinstance(spec, Map):
        return spec
    entries = (
        e._replace(value=camel_cased(e.value)) if e.key.lower() == "sharedssoconfigs" else e
        for e in spec
    )
    return Map(tuple(entries), spec.mark)
