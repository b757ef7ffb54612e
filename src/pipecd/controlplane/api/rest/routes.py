# SPDX-License-Identifier: Apache-2.0
"""The REST routes: which method and path calls which RPC of APIService."""

from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor

from pipecd.controlplane.api.api_service import SERVICE


@dataclass(frozen=True)
class RestRoute:
    """An HTTP method and a path; its parts in braces are fields of the RPC's request."""

    method: str
    path: str
    rpc: str
    summary: str

    @property
    def descriptor(self) -> MethodDescriptor:
        return SERVICE.methods_by_name[self.rpc]

    @property
    def path_fields(self) -> tuple[str, ...]:
        """The request fields in the path."""
        parts = (part for part in self.path.split("/") if part.startswith("{"))
        return tuple(part.strip("{}") for part in parts)

    @property
    def has_body(self) -> bool:
        return self.method in ("POST", "PUT")


_APPLICATION = "/applications/{application_id}"
_PIPED = "/pipeds/{piped_id}"
_DEPLOYMENT = "/deployments/{deployment_id}"

ROUTES = (
    RestRoute("GET", "/applications", "ListApplications", "Lists applications."),
    RestRoute("POST", "/applications", "AddApplication", "Adds an application."),
    RestRoute(
        "POST",
        "/applications/rename-config-files",
        "RenameApplicationConfigFile",
        "Gives the configuration files of several applications another name.",
    ),
    RestRoute("GET", _APPLICATION, "GetApplication", "Shows an application."),
    RestRoute(
        "PUT", _APPLICATION, "UpdateApplication", "Changes where an application is deployed."
    ),
    RestRoute("DELETE", _APPLICATION, "DeleteApplication", "Deletes an application."),
    RestRoute("POST", f"{_APPLICATION}/sync", "SyncApplication", "Deploys an application now."),
    RestRoute("POST", f"{_APPLICATION}/enable", "EnableApplication", "Enables an application."),
    RestRoute("POST", f"{_APPLICATION}/disable", "DisableApplication", "Disables an application."),
    RestRoute(
        "PUT",
        f"{_APPLICATION}/deploy-targets",
        "UpdateApplicationDeployTargets",
        "Replaces the deploy targets of an application.",
    ),
    RestRoute("GET", "/deployments", "ListDeployments", "Lists deployments."),
    RestRoute("GET", _DEPLOYMENT, "GetDeployment", "Shows a deployment."),
    RestRoute("GET", f"{_DEPLOYMENT}/logs", "ListStageLogs", "Shows the logs of every stage."),
    RestRoute("GET", "/commands/{command_id}", "GetCommand", "Shows what became of a command."),
    RestRoute("POST", "/pipeds", "RegisterPiped", "Registers a piped; its key is told this once."),
    RestRoute("GET", _PIPED, "GetPiped", "Shows a piped."),
    RestRoute("PUT", _PIPED, "UpdatePiped", "Changes the name and description of a piped."),
    RestRoute("POST", f"{_PIPED}/enable", "EnablePiped", "Lets a piped work again."),
    RestRoute("POST", f"{_PIPED}/disable", "DisablePiped", "Keeps a piped from working."),
    RestRoute("POST", f"{_PIPED}/encrypt", "Encrypt", "Encrypts a secret for a piped."),
    RestRoute("POST", "/events", "RegisterEvent", "Tells pipeds about something new."),
    RestRoute("POST", "/plan-previews", "RequestPlanPreview", "Asks what a branch would deploy."),
    RestRoute(
        "POST",
        "/plan-previews/results",
        "GetPlanPreviewResults",
        "Shows what a branch would deploy, once all pipeds have told; 404 until then.",
    ),
)
