# SPDX-License-Identifier: Apache-2.0
"""Which address is which RPC of APIService."""

from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor

from pipecd.controlplane.api.external import SERVICE


@dataclass(frozen=True)
class Address:
    """An HTTP method and a path, whose parts in braces are fields of the request of an RPC."""

    method: str
    path: str
    rpc: str
    summary: str

    @property
    def descriptor(self) -> MethodDescriptor:
        return SERVICE.methods_by_name[self.rpc]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that the path names."""
        parts = (part for part in self.path.split("/") if part.startswith("{"))
        return tuple(part.strip("{}") for part in parts)

    @property
    def has_body(self) -> bool:
        return self.method in ("POST", "PUT")


_APPLICATION = "/applications/{application_id}"
_PIPED = "/pipeds/{piped_id}"
_DEPLOYMENT = "/deployments/{deployment_id}"

ADDRESSES = (
    Address("GET", "/applications", "ListApplications", "Lists applications."),
    Address("POST", "/applications", "AddApplication", "Adds an application."),
    Address(
        "POST",
        "/applications/rename-config-files",
        "RenameApplicationConfigFile",
        "Gives the configuration files of several applications another name.",
    ),
    Address("GET", _APPLICATION, "GetApplication", "Shows an application."),
    Address("PUT", _APPLICATION, "UpdateApplication", "Changes where an application is deployed."),
    Address("DELETE", _APPLICATION, "DeleteApplication", "Deletes an application."),
    Address("POST", f"{_APPLICATION}/sync", "SyncApplication", "Deploys an application now."),
    Address("POST", f"{_APPLICATION}/enable", "EnableApplication", "Enables an application."),
    Address("POST", f"{_APPLICATION}/disable", "DisableApplication", "Disables an application."),
    Address(
        "PUT",
        f"{_APPLICATION}/deploy-targets",
        "UpdateApplicationDeployTargets",
        "Replaces the deploy targets of an application.",
    ),
    Address("GET", "/deployments", "ListDeployments", "Lists deployments."),
    Address("GET", _DEPLOYMENT, "GetDeployment", "Shows a deployment."),
    Address("GET", f"{_DEPLOYMENT}/logs", "ListStageLogs", "Shows the logs of every stage."),
    Address("GET", "/commands/{command_id}", "GetCommand", "Shows what became of a command."),
    Address("POST", "/pipeds", "RegisterPiped", "Registers a piped; its key is told this once."),
    Address("GET", _PIPED, "GetPiped", "Shows a piped."),
    Address("PUT", _PIPED, "UpdatePiped", "Changes the name and description of a piped."),
    Address("POST", f"{_PIPED}/enable", "EnablePiped", "Lets a piped work again."),
    Address("POST", f"{_PIPED}/disable", "DisablePiped", "Keeps a piped from working."),
    Address("POST", f"{_PIPED}/encrypt", "Encrypt", "Encrypts a secret for a piped."),
    Address("POST", "/events", "RegisterEvent", "Tells pipeds about something new."),
    Address("POST", "/plan-previews", "RequestPlanPreview", "Asks what a branch would deploy."),
    Address(
        "POST",
        "/plan-previews/results",
        "GetPlanPreviewResults",
        "Shows what a branch would deploy, once all pipeds have told; 404 until then.",
    ),
)
