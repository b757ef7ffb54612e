# SPDX-License-Identifier: Apache-2.0
"""Who may use each RPC and each page of the control plane, declared independently of the code."""

# The services of ours whose RPCs are served beside those of one of upstream's.
SERVED_AS = {
    "pipecd.batch.Batch": "grpc.service.pipedservice.PipedService",
    "pipecd.deploymentchanges.DeploymentChangeReports": "grpc.service.pipedservice.PipedService",
    "pipecd.deploymentcontrol.DeploymentControl": "grpc.service.apiservice.APIService",
    "pipecd.lease.Leases": "grpc.service.pipedservice.PipedService",
    "pipecd.pluginfailures.PluginFailures": "grpc.service.pipedservice.PipedService",
    "pipecd.ordering.Ordering": "grpc.service.pipedservice.PipedService",
    "pipecd.applicationtargets.ApplicationTargets": "grpc.service.apiservice.APIService",
    "pipecd.pipedlist.PipedList": "grpc.service.apiservice.APIService",
    "pipecd.planpreviewpages.PlanPreviewPages": "grpc.service.apiservice.APIService",
    "pipecd.sessioncontrol.SessionControl": "grpc.service.apiservice.APIService",
    "pipecd.wakeups.Wakeups": "grpc.service.pipedservice.PipedService",
}

PIPED_RPCS = frozenset(
    [
        "ReportStat",
        "ReportPipedMeta",
        "GetDesiredVersion",
        "ListApplications",
        "ReportApplicationSyncState",
        "ReportApplicationDeployingStatus",
        "ReportApplicationMostRecentDeployment",
        "GetApplicationMostRecentDeployment",
        "GetDeployment",
        "ListNotCompletedDeployments",
        "CreateDeployment",
        "ReportDeploymentPlanned",
        "ReportDeploymentStatusChanged",
        "ReportDeploymentCompleted",
        "SaveDeploymentMetadata",
        "SaveDeploymentSharedMetadata",
        "SaveDeploymentPluginMetadata",
        "SaveStageMetadata",
        "ReportStageLogs",
        "ReportStageLogsFromLastCheckpoint",
        "ReportStageStatusChanged",
        "ListUnhandledCommands",
        "ReportCommandHandled",
        "ReportApplicationLiveState",
        "ReportApplicationLiveStateEvents",
        "GetLatestEvent",
        "ListEvents",
        "ReportEventStatuses",
        "GetLatestAnalysisResult",
        "PutLatestAnalysisResult",
        "UpdateApplicationConfigurations",
        "ReportUnregisteredApplicationConfigurations",
        "CreateDeploymentChain",
        "InChainDeploymentPlannable",
        "GetApplicationSharedObject",
        "PutApplicationSharedObject",
        "AcquirePipedLease",
        "ReleasePipedLease",
        "ReportPluginFailures",
        "ReportDeploymentChanges",
        "CallBatch",
        "ListDeploymentsInOrder",
        "CreateDeploymentInOrder",
        "ListEventsInOrder",
        "WatchWakeups",
    ]
)
# An API key that may only read can call these, and none of the others.
API_READING = frozenset(
    [
        "GetApplication",
        "ListApplications",
        "GetDeployment",
        "ListDeployments",
        "ListStageLogs",
        "GetStageLog",
        "GetCommand",
        "GetPiped",
        "ListPipeds",
        "Encrypt",
    ]
)
API_WRITING = frozenset(
    [
        "AddApplication",
        "AddApplicationToTargets",
        "SyncApplication",
        "UpdateApplication",
        "DeleteApplication",
        "EnableApplication",
        "DisableApplication",
        "RenameApplicationConfigFile",
        "UpdateApplicationDeployTargets",
        "RegisterPiped",
        "UpdatePiped",
        "EnablePiped",
        "DisablePiped",
        "RegisterEvent",
        "RequestPlanPreview",
        "GetPlanPreviewResults",
        "GetPlanPreviewPages",
        "CancelDeployment",
        "ApproveStage",
        "RejectStage",
        "SkipStage",
    ]
)
# What only an admin may do in the console needs a key that was generated for it.
API_SESSIONS = frozenset(["ListSessions", "EndSession", "EndUserSessions", "EndAllSessions"])
# The lowest of the built-in roles that may call an RPC of WebService.
WEB_VIEWER = frozenset(
    [
        "ListPipeds",
        "GetPiped",
        "ListReleasedVersions",
        "ListDeprecatedNotes",
        "ListApplications",
        "GetApplication",
        "ListUnregisteredApplications",
        "ListDeployments",
        "GetDeployment",
        "GetStageLog",
        "ListDeploymentTraces",
        "GetApplicationLiveState",
        "GetProject",
        "GetMe",
        "GetCommand",
        "GetInsightData",
        "GetInsightApplicationCount",
        "ListDeploymentChains",
        "GetDeploymentChain",
        "ListEvents",
    ]
)
WEB_EDITOR = frozenset(
    [
        "AddApplication",
        "UpdateApplication",
        "EnableApplication",
        "DisableApplication",
        "DeleteApplication",
        "SyncApplication",
        "GenerateApplicationSealedSecret",
        "CancelDeployment",
        "SkipStage",
        "ApproveStage",
    ]
)
WEB_ADMIN = frozenset(
    [
        "RegisterPiped",
        "UpdatePiped",
        "RecreatePipedKey",
        "DeleteOldPipedKeys",
        "EnablePiped",
        "DisablePiped",
        "UpdatePipedDesiredVersion",
        "RestartPiped",
        "UpdateProjectStaticAdmin",
        "EnableStaticAdmin",
        "DisableStaticAdmin",
        "UpdateProjectSSOConfig",
        "UpdateProjectRBACConfig",
        "AddProjectRBACRole",
        "UpdateProjectRBACRole",
        "DeleteProjectRBACRole",
        "AddProjectUserGroup",
        "DeleteProjectUserGroup",
        "GenerateAPIKey",
        "DisableAPIKey",
        "ListAPIKeys",
    ]
)
# Pages that are there before anybody has signed in.
PUBLIC_PAGES = frozenset(
    {
        "GET /", "GET /login", "GET /auth/login/static", "POST /auth/login/static", "GET /auth/login", "POST /auth/login",
        "GET /setup", "POST /setup", "GET /auth/callback", "GET /auth/logout", "POST /auth/logout", "GET /assets/{version}/{name}", "GET /favicon.ico",
    }
)  # fmt: skip
VIEWER_PAGES = frozenset(
    {
        "GET /applications", "GET /applications/drift", "GET /applications/sync", "GET /applications/{id}", "GET /applications/{id}/encrypt", "GET /deployments", "GET /deployments/{id}",
        "GET /deployments/{id}/stages/{stage}/log.txt", "GET /settings/piped", "GET /settings/piped/{id}", "GET /settings",
        "GET /settings/project", "GET /_/stream", "GET /applications/add", "GET /overview", "GET /applications/{id}/settings",
        "GET /docs/api", "GET /applications/{id}/live",
        "GET /plan-previews", "GET /plan-previews/{id}", "GET /settings/users", "GET /chains", "GET /chains/{id}", "GET /deployment-traces", "GET /events", "GET /events/{id}",
        "GET /insights", "GET /insights.csv", "GET /search", "GET /help", "GET /help/{name}",
    }
)  # fmt: skip
EDITOR_FORMS = frozenset(
    {
        "POST /applications/add", "POST /applications/{id}/sync", "POST /applications/{id}/encrypt", "POST /deployments/{id}/cancel",
        "POST /deployments/{id}/stages/{stage}/approve", "POST /deployments/{id}/stages/{stage}/skip",
        "POST /deployments/{id}/stages/{stage}/reject", "POST /applications/sync", "POST /applications/enable", "POST /applications/disable", "POST /applications/{id}/settings/edit",
        "POST /applications/{id}/settings/enable", "POST /applications/{id}/settings/disable",
        "POST /applications/{id}/settings/delete", "POST /applications/add/several",
    }
)  # fmt: skip
ADMIN_PAGES = frozenset({"GET /settings/api-key"})
ADMIN_FORMS = frozenset(
    {
        "POST /settings/piped", "POST /settings/piped/{id}/restart", "POST /settings/piped/{id}/keys", "POST /settings/piped/{id}/edit",
        "POST /settings/piped/{id}/version", "POST /settings/piped/{id}/enable", "POST /settings/piped/{id}/disable",
        "POST /settings/piped/{id}/keys/drop", "POST /settings/project/webhook", "POST /settings/project/webhook/remove",
        "POST /settings/project/admin", "POST /settings/project/admin/enable", "POST /settings/project/admin/disable",
        "POST /settings/project/sso/github", "POST /settings/project/sso/oidc", "POST /settings/project/sso/remove",
        "POST /settings/project/roles", "POST /settings/project/roles/grid", "POST /settings/project/roles/update/grid", "POST /settings/project/groups/update", "POST /settings/project/roles/update", "POST /settings/project/roles/delete",
        "POST /settings/project/groups", "POST /settings/project/groups/delete", "POST /settings/project/sessions/user",
        "POST /settings/project/sessions/all", "POST /settings/users/end", "POST /settings/users/end-user", "POST /settings/api-key", "POST /settings/api-key/{id}/disable",
        "POST /settings/piped/upgrade", "POST /settings/project/sso/github/try", "POST /settings/project/sso/oidc/try",
    }
)  # fmt: skip
