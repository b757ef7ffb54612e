# SPDX-License-Identifier: Apache-2.0
"""The search over applications, deployments, pipeds, pages, actions and the documentation."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.application_summary import ApplicationSummary, list_summaries
from pipecd.controlplane.console.deployments_view import deployment_row
from pipecd.controlplane.console.documentation import CHANGES, read_documents
from pipecd.controlplane.console.documentation_search import (
    DocumentSection,
    document_sections,
    find_sections,
)
from pipecd.controlplane.console.formatting import Timestamp
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.console.status_badge import (
    APPLICATION_STATUSES,
    WAITING,
    Badge,
    piped_status,
)
from pipecd.controlplane.console.traces_view import is_commit_prefix
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.model.errors import Denied

PATH = "/search"
_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)
_MAX_RESULTS = 6
_MAX_ACTIONS = 2
# Shorter texts are in too many deployments and pages of the documentation.
_MIN_TEXT = 3
_MAX_TEXT = 100


@dataclass(frozen=True)
class SearchResult:
    """A link to `href`, or with `is_form` a button that submits a form there."""

    text: str
    href: str
    note: str = ""
    badge: Badge | None = None
    when: Timestamp | None = None
    is_form: bool = False


@dataclass(frozen=True)
class SearchGroup:
    """Results of one kind."""

    title: str
    results: tuple[SearchResult, ...]


PAGES = (
    SearchResult("Overview", "/overview", "what needs attention"),
    SearchResult("Applications", "/applications"),
    SearchResult("Deployments", "/deployments"),
    SearchResult("Deployments waiting for approval", "/deployments?status=waiting"),
    SearchResult("Failed deployments", "/deployments?status=5", "of the whole project"),
    SearchResult("Plan previews", "/plan-previews", "what branches would deploy"),
    SearchResult("Deployment chains", "/chains"),
    SearchResult("Deployment traces", "/deployment-traces", "commits and what they deployed"),
    SearchResult("Events", "/events"),
    SearchResult("Insights", "/insights", "frequency, lead time, failures, time to restore"),
    SearchResult("Pipeds", "/settings/piped", "settings"),
    SearchResult("API keys", "/settings/api-key", "settings"),
    SearchResult("Users", "/settings/users", "settings: who is signed in, sessions"),
    SearchResult("Project", "/settings/project", "roles, groups, single sign-on, webhooks"),
    SearchResult("Documentation", "/help"),
    SearchResult("What is new", "/help/whats-new"),
    SearchResult("Keyboard shortcuts", "/help#keys"),
)
ACTIONS = (
    SearchResult("Add an application", "/applications/add"),
    SearchResult("Add a piped", "/settings/piped#add"),
    SearchResult("Upgrade pipeds", "/settings/piped#upgrade"),
    SearchResult("Generate an API key", "/settings/api-key"),
    SearchResult("Change the password", "/settings/project#admin", "of the static admin"),
    SearchResult("Set up single sign-on", "/settings/project#sso", "GitHub or OpenID Connect"),
    SearchResult("Add a role or a user group", "/settings/project#roles"),
    SearchResult("Create a webhook", "/settings/project#webhook", "pushes are deployed at once"),
    SearchResult("End the sessions of a user", "/settings/users"),
    SearchResult("Switch project", "/login?switch=1"),
)


def matching(results: Sequence[SearchResult], text: str) -> tuple[SearchResult, ...]:
    """The results that contain every word of the text, those that begin with it first."""
    words = text.lower().split()
    found = [
        result
        for result in results
        if all(word in f"{result.text} {result.note}".lower() for word in words)
    ]
    return tuple(sorted(found, key=lambda result: not result.text.lower().startswith(text.lower())))


def matching_applications(
    applications: Sequence[ApplicationSummary], text: str
) -> list[ApplicationSummary]:
    """By name: an equal one first, then those that begin with the text, then the others."""
    wanted = text.casefold()
    found = [each for each in applications if wanted in each.folded_name or each.id == text]

    def rank(application: ApplicationSummary) -> tuple[bool, bool, str]:
        name = application.folded_name
        return (name != wanted, not name.startswith(wanted), name)

    return nsmallest(_MAX_RESULTS, found, key=rank)


class SearchPages:
    """Route and handler of the search."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    @cached_property
    def _sections(self) -> tuple[DocumentSection, ...]:
        """The sections of the documentation, which are read for the first search."""
        documents = sorted(read_documents().items())
        return document_sections(document for name, document in documents if name != CHANGES)

    def routes(self) -> list[Route]:
        return [Route(PATH, self._context.page(self.show_page), methods=["GET"])]

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        text = request.query_params.get("q", "").strip()[:_MAX_TEXT]
        user = session.user
        groups = [*await self._objects(request, text, user)] if text else []
        groups += [
            SearchGroup("Commits", _commit_results(text)),
            SearchGroup("Pages", matching(PAGES, text)),
            SearchGroup("Actions", matching(ACTIONS, text)),
            SearchGroup("Documentation", self._documents_about(text)),
        ]
        return self._context.render(
            request, "search.html", text=text, groups=[group for group in groups if group.results]
        )

    def _documents_about(self, text: str) -> tuple[SearchResult, ...]:
        """Sections of the guide, once there is enough of a text that they are not noise."""
        if len(text) < _MIN_TEXT:
            return ()
        return tuple(
            SearchResult(found.section.label, found.section.href, found.excerpt)
            for found in find_sections(self._sections, text, _MAX_RESULTS)
        )

    async def _objects(self, request: Request, text: str, user: User) -> tuple[SearchGroup, ...]:
        cases, now = self._context.cases, self._context.local_now(request)
        shown: list[ApplicationSummary] = []
        deployments: tuple[SearchResult, ...] = ()
        waiting: frozenset[str] = frozenset()
        with suppress(Denied):
            of_project = ApplicationFilter(user.project)
            listed = await list_summaries(cases.applications, of_project, by=user)
            shown = matching_applications(listed, text)
        with suppress(Denied):
            approvals = await cases.deployments.list_waiting_for_approval(by=user)
            waiting = frozenset(each.application_id for each in approvals)
            if len(text) >= _MIN_TEXT:
                mentioned = DeploymentFilter(user.project, text=text)
                found = await cases.deployments.list(mentioned, PageRequest(_MAX_RESULTS), by=user)
                rows = (deployment_row(each, now) for each in found.items)
                deployments = tuple(
                    SearchResult(
                        f"{row.application_name} {row.commit.short}",
                        f"/deployments/{row.id}",
                        row.commit.subject,
                        row.badge,
                        row.created,
                    )
                    for row in rows
                )
        pipeds = await self._context.visible_pipeds(user) or ()
        statuses = (piped_status(each.id, pipeds) for each in pipeds)
        piped_results = (
            SearchResult(each.name, f"/settings/piped/{each.id}", "piped", each.badge)
            for each in statuses
        )
        return (
            SearchGroup(
                "Applications",
                tuple(_application_result(each, waiting=each.id in waiting) for each in shown),
            ),
            # Their deployments are many; what can be done must not be below them.
            SearchGroup("Actions", await self._actions_on(shown[:_MAX_ACTIONS], user)),
            SearchGroup("Deployments", deployments),
            SearchGroup("Pipeds", matching(tuple(piped_results), text)[:_MAX_RESULTS]),
        )

    async def _actions_on(
        self, applications: Sequence[ApplicationSummary], user: User
    ) -> tuple[SearchResult, ...]:
        """What the user may do with the applications that were found first."""
        actions: list[SearchResult] = []
        for each in applications:
            if each.disabled or await self._context.denied_reason(user, _UPDATE, each):
                continue
            path = f"/applications/{each.id}"
            actions += (
                SearchResult(f"Sync {each.name}", f"{path}/sync", "starts at once", is_form=True),
                SearchResult(f"Encrypt a secret for {each.name}", f"{path}/encrypt"),
                SearchResult(f"Settings of {each.name}", f"{path}/settings"),
            )
        return tuple(actions)


def _commit_results(text: str) -> tuple[SearchResult, ...]:
    """Where a commit of a source repository has got to, if the text is like its hash."""
    if not is_commit_prefix(text):
        return ()
    href = f"/deployment-traces?commitHash={text.lower()}"
    return (SearchResult(f"Trace of commit {text[:7]}", href, "the deployments that it led to"),)


def _application_result(application: ApplicationSummary, *, waiting: bool) -> SearchResult:
    labels = ", ".join(f"{key}: {value}" for key, value in sorted(application.labels.items()))
    badge = APPLICATION_STATUSES[WAITING if waiting else application.status]
    return SearchResult(application.name, f"/applications/{application.id}", labels, badge)
