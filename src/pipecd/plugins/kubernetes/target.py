# SPDX-License-Identifier: Apache-2.0
"""What a piped tells the Kubernetes plugin: clusters and chart sources."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from pipecd.sdk.config import Spec, refuse


class ResourceMatcher(Spec):
    """A kind of an API version; an empty kind means the whole API version."""

    api_version: str = ""
    kind: str = ""


class AppStateInformer(Spec):
    """Which live resources are watched; what is excluded wins over what is included."""

    namespace: str = ""
    include_resources: tuple[ResourceMatcher, ...] = ()
    exclude_resources: tuple[ResourceMatcher, ...] = ()


class KubernetesTarget(Spec):
    """A cluster; without an address or a kubeconfig it is the one piped runs in."""

    master_url: Annotated[str, Field(alias="masterURL")] = ""
    kube_config_path: str = ""
    kubectl_version: str = ""
    app_state_informer: AppStateInformer = AppStateInformer()


class ChartRepository(Spec):
    """A Helm chart repository, served over HTTP or kept in Git."""

    type: str = "HTTP"
    name: str = ""
    address: str = ""
    username: str = ""
    password: Annotated[str, Field(repr=False)] = ""
    insecure: bool = False
    git_remote: str = ""
    ssh_key_file: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        http = self.type == "HTTP"
        refuse(
            self,
            (
                self.type not in ("HTTP", "GIT"),
                "type",
                "either HTTP repository or GIT repository must be configured",
            ),
            (http and not self.name, "name", "name must be set"),
            (http and not self.address, "address", "address must be set"),
            (self.type == "GIT" and not self.git_remote, "gitRemote", "gitRemote must be set"),
        )
        return self


class ChartRegistry(Spec):
    """An OCI registry that holds Helm charts."""

    type: str = "OCI"
    address: str = ""
    username: str = ""
    password: Annotated[str, Field(repr=False)] = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        refuse(
            self,
            (self.type != "OCI", "type", "OCI registry must be configured"),
            (self.type == "OCI" and not self.address, "address", "address must be set"),
        )
        return self


class ChartSources(Spec):
    """Where charts come from, for every application of the piped."""

    chart_repositories: tuple[ChartRepository, ...] = ()
    chart_registries: tuple[ChartRegistry, ...] = ()
