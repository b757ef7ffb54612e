# SPDX-License-Identifier: Apache-2.0
"""The REST routes: which method and path calls which RPC of APIService."""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor

from pipecd.controlplane.api.api_service import (
    APPLICATION_TARGETS,
    CONTROL,
    PIPED_LIST,
    PREVIEW_PAGES,
    SERVICE,
    SESSIONS,
)

METHODS: Mapping[str, MethodDescriptor] = {
    rpc.name: rpc
    for service in (SERVICE, CONTROL, SESSIONS, PREVIEW_PAGES, PIPED_LIST, APPLICATION_TARGETS)
    for rpc in service.methods
}


@dataclass(frozen=True)
class RestRoute:
    """An HTTP method and a path; its parts in braces are fields of the RPC's request."""

    method: str
    path: str
    rpc: str
    summary: str

    @property
    def descriptor(self) -> MethodDescriptor:
        return METHODS[self.rpc]

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
_STAGE = f"{_DEPLOYMENT}/stages/{{stage_id}}"

ROUTES = (
    RestRoute("GET", "/applications", "ListApplications", "Lists applications."),
    RestRoute("POST", "/applications", "AddApplication", "Adds an application."),
    RestRoute(
        "POST",
        "/applications/with-deploy-targets",
        "AddApplicationToTargets",
        "Adds an application with its deploy targets, enabled or disabled.",
    ),
    RestRoute(
        "POST",
        "/applications/rename-config-files",
        "RenameApplicationConfigFile",
        "Renames the configuration files of several applications.",
    ),
    RestRoute("GET", _APPLICATION, "GetApplication", "Returns an application."),
    RestRoute(
        "PUT",
        _APPLICATION,
        "UpdateApplication",
        "Updates the piped and platform provider of an application.",
    ),
    RestRoute("DELETE", _APPLICATION, "DeleteApplication", "Deletes an application."),
    RestRoute(
        "POST",
        f"{_APPLICATION}/sync",
        "SyncApplication",
        "Triggers a deployment of an application.",
    ),
    RestRoute("POST", f"{_APPLICATION}/enable", "EnableApplication", "Enables an application."),
    RestRoute("POST", f"{_APPLICATION}/disable", "DisableApplication", "Disables an application."),
    RestRoute(
        "PUT",
        f"{_APPLICATION}/deploy-targets",
        "UpdateApplicationDeployTargets",
        "Replaces the deploy targets of an application.",
    ),
    RestRoute("GET", "/deployments", "ListDeployments", "Lists deployments."),
    RestRoute("GET", _DEPLOYMENT, "GetDeployment", "Returns a deployment."),
    RestRoute("GET", f"{_DEPLOYMENT}/logs", "ListStageLogs", "Returns the logs of all stages."),
    RestRoute("POST", f"{_DEPLOYMENT}/cancel", "CancelDeployment", "Cancels a deployment."),
    RestRoute(
        "GET",
        f"{_STAGE}/log",
        "GetStageLog",
        "Returns a part of the log of a stage, from an index on.",
    ),
    RestRoute("POST", f"{_STAGE}/approve", "ApproveStage", "Approves a stage."),
    RestRoute("POST", f"{_STAGE}/reject", "RejectStage", "Rejects a stage, with a reason."),
    RestRoute("POST", f"{_STAGE}/skip", "SkipStage", "Skips a stage that allows it."),
    RestRoute("GET", "/commands/{command_id}", "GetCommand", "Returns a command with its status."),
    RestRoute("GET", "/pipeds", "ListPipeds", "Lists the pipeds of the project, the oldest first."),
    RestRoute(
        "POST", "/pipeds", "RegisterPiped", "Registers a piped; only this response has its key."
    ),
    RestRoute("GET", _PIPED, "GetPiped", "Returns a piped."),
    RestRoute("PUT", _PIPED, "UpdatePiped", "Updates the name and description of a piped."),
    RestRoute("POST", f"{_PIPED}/enable", "EnablePiped", "Enables a piped."),
    RestRoute("POST", f"{_PIPED}/disable", "DisablePiped", "Disables a piped."),
    RestRoute("POST", f"{_PIPED}/encrypt", "Encrypt", "Encrypts a secret for a piped."),
    RestRoute("POST", "/events", "RegisterEvent", "Registers an event."),
    RestRoute(
        "POST", "/plan-previews", "RequestPlanPreview", "Requests a plan preview of a branch."
    ),
    RestRoute(
        "POST",
        "/plan-previews/results",
        "GetPlanPreviewResults",
        "Returns the results of a plan preview; 404 until all pipeds have handled it.",
    ),
    RestRoute(
        "POST",
        "/plan-previews/pages",
        "GetPlanPreviewPages",
        "Returns where the console shows plan previews.",
    ),
    RestRoute("GET", "/sessions", "ListSessions", "Lists the sessions of users, the newest first."),
    RestRoute("DELETE", "/sessions/{session_id}", "EndSession", "Ends a session."),
    RestRoute("POST", "/sessions/end-of-user", "EndUserSessions", "Ends all sessions of a user."),
    RestRoute("POST", "/sessions/end-all", "EndAllSessions", "Ends all sessions of the project."),
)
