# SPDX-License-Identifier: Apache-2.0
"""The pages of pipeds: the list, the page of one, and the forms that register and change them."""

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.application_summary import ApplicationSummary, list_summaries
from pipecd.controlplane.console.flash import Flash
from pipecd.controlplane.console.formatting import plural
from pipecd.controlplane.console.list_filters import FilterChoices
from pipecd.controlplane.console.live_updates import MAX_TOPICS
from pipecd.controlplane.console.page_context import (
    BrowserSession,
    Endpoint,
    FormError,
    Handler,
    PageContext,
)
from pipecd.controlplane.console.piped_filters import (
    OLDER,
    mark_outdated,
    matches,
    parse_piped_query,
    piped_counts,
)
from pipecd.controlplane.console.pipeds_view import (
    PipedRow,
    piped_rows,
    piped_view,
    restart_notice,
)
from pipecd.controlplane.console.status_badge import PIPED_STATUSES
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.model.errors import Denied, UserMistake
from pipecd.observe.version import build_version

LIST_PATH = "/settings/piped"
_CREATE = Permission(Resource.PIPED, Action.CREATE)
_UPDATE = Permission(Resource.PIPED, Action.UPDATE)
_VERSION = re.compile(r"v[A-Za-z0-9._+-]{1,127}")
_PORTS = {"http": 80, "https": 443}
_SNIPPET = """\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: {project}
  pipedID: {id}
  pipedKeyData: {key}
  apiAddress: {address}
  # repositories:
  #   - repoId: site
  #     remote: git@github.com:example/site.git
  #     branch: main
  # plugins:
  #   - name: kubernetes
  #     deployTargets:
  #       - name: production
  #         config:
  #           kubeConfigPath: /etc/piped/kubeconfig
"""
# Stands for a key that the control plane does not know any more.
_OWN_KEY = "YOUR_KEY_IN_BASE64"

Change = Callable[[str, FormData, User], Awaitable[None]]


class PipedPages:
    """Routes and handlers of the pages of pipeds."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        page, piped = self._context.page, f"{LIST_PATH}/{{id}}"
        forms: dict[str, Handler] = {
            "restart": self.restart,
            "keys": self.add_key,
            "edit": self._change(self.edit),
            "version": self._change(self.set_desired_version),
            "enable": self._change(self.enable),
            "disable": self._change(self.disable),
            "keys/drop": self._change(self.delete_old_keys),
        }
        return [
            Route(LIST_PATH, page(self.list_page), methods=["GET"]),
            Route(piped, page(self.show_page), methods=["GET"]),
            Route(LIST_PATH, self._form("add", self.register), methods=["POST"]),
            Route(f"{LIST_PATH}/upgrade", self._form("upgrade", self.upgrade), methods=["POST"]),
            *(
                Route(f"{piped}/{name}", self._form(name, handler), methods=["POST"])
                for name, handler in forms.items()
            ),
        ]

    def _form(self, name: str, handler: Handler) -> Endpoint:
        async def show_error(
            request: Request, session: BrowserSession, error: FormError
        ) -> Response:
            show = self.show_page if "id" in request.path_params else self.list_page
            return await show(request, session, error)

        return self._context.validated_action(name, handler, show_error)

    def _change(self, change: Change) -> Handler:
        """A handler that applies the change and redirects to the page of the piped."""

        async def handler(request: Request, session: BrowserSession) -> Response:
            piped_id = request.path_params["id"]
            await change(piped_id, await request.form(), session.user)
            return RedirectResponse(f"{LIST_PATH}/{piped_id}", 303)

        return handler

    async def list_page(
        self, request: Request, session: BrowserSession, error: FormError | None = None
    ) -> Response:
        user, cases = session.user, self._context.cases
        pipeds = await cases.pipeds.list(by=user)
        activity = await cases.pipeds.activity(pipeds, by=user)
        query = parse_piped_query(request.query_params)
        every = mark_outdated(
            piped_rows(pipeds, activity, self._context.local_now(request)),
            {piped.id for piped in pipeds if (await cases.piped_leases.get(piped.id)).instance},
            build_version(),
        )
        counts = await self._application_counts(user)
        rows = tuple(
            replace(row, applications=counts[row.id] if counts is not None else None)
            for row in every
            if matches(row, query)
        )
        filters, url = query.active_filters(), query.url(LIST_PATH)
        # A list of those that run an older version is there to upgrade all of them.
        ticked = {row.id for row in rows} if query.version == OLDER else set[str]()
        if error and error.form == "upgrade":
            ticked = {str(value) for value in (await request.form()).getlist("piped")}
        return self._context.render(
            request,
            "pipeds.html",
            status=422 if error else 200,
            rows=rows,
            counts=piped_counts(every),
            total=len(every),
            outdated=sum(bool(row.newer_version) for row in every),
            query=query,
            url=url,
            chips=url.chips(filters),
            texts={each.param: each.text for each in filters},
            choices=FilterChoices(
                statuses=tuple((value, badge.text) for value, badge in PIPED_STATUSES.items()),
            ),
            versions=(
                (OLDER, "Not the newest version"),
                *((version, version) for version in sorted({row.version for row in every} - {""})),
            ),
            disabled_reason=await self._context.denied_reason(user, _CREATE),
            upgrade_reason=await self._context.denied_reason(user, _UPDATE),
            offered_version=await self._offered_version(user),
            ticked=ticked,
            error=error,
            topics=_topics(rows, error),
        )

    async def _application_counts(self, user: User) -> Counter[str] | None:
        """How many applications each piped has; None if the user may not list them."""
        with suppress(Denied):
            everything = ApplicationFilter(user.project)
            listed = await list_summaries(self._context.cases.applications, everything, by=user)
            return Counter(application.piped_id for application in listed)
        return None

    async def _offered_version(self, user: User) -> str:
        """The version of this control plane, if that is one of the project's pipeds, too.

        Upstream's releases have other numbers.
        """
        version = build_version()
        is_ours = not await self._context.cases.pipeds.has_upstream(by=user)
        return version if version[:1] == "v" and is_ours else ""

    async def show_page(
        self, request: Request, session: BrowserSession, error: FormError | None = None
    ) -> Response:
        user, cases = session.user, self._context.cases
        piped = await cases.pipeds.get(request.path_params["id"], by=user)
        activity = await cases.pipeds.activity((piped,), by=user)
        lease = await cases.piped_leases.get(piped.id)
        failures = await cases.pipeds.plugin_failures(piped.id, by=user)
        view = piped_view(
            piped, activity[piped.id], lease, self._context.local_now(request), failures
        )
        command = await self._context.requested_command(
            request,
            user,
            lambda command: command.HasField("restart_piped") and command.piped_id == piped.id,
        )
        of_piped = ApplicationFilter(user.project, piped_id=piped.id)
        applications: Sequence[ApplicationSummary] | None = None
        with suppress(Denied):
            applications = await list_summaries(cases.applications, of_piped, by=user)
        ours = {piped.id} if lease.instance else set[str]()
        (marked,) = mark_outdated((view.row,), ours, build_version())
        snippet, command_line = self._start(request, session, piped.id)
        return self._context.render(
            request,
            "piped.html",
            status=422 if error else 200,
            view=view,
            applications=None if applications is None else len(applications),
            enabled_applications=sum(not each.disabled for each in applications or ()),
            newer_version=marked.newer_version,
            notice=restart_notice(command, piped) if command else None,
            disabled_reason=await self._context.denied_reason(user, _UPDATE),
            error=error,
            topics=_topics((view.row,), error),
            snippet=snippet,
            command=command_line,
        )

    async def restart(self, request: Request, session: BrowserSession) -> Response:
        piped_id = request.path_params["id"]
        command_id = await self._context.deduplicator.run(
            (session.token, request.url.path),
            lambda: self._context.cases.pipeds.restart(piped_id, by=session.user),
        )
        return RedirectResponse(f"{LIST_PATH}/{piped_id}?cmd={command_id}", 303)

    async def register(self, request: Request, session: BrowserSession) -> Response:
        form = await request.form()
        name, description = _required_name(form), _text(form, "description")

        async def register() -> str:
            registered = await self._context.cases.pipeds.register(
                name, description, by=session.user
            )
            return f"{registered.id} {registered.key}"

        key = (session.token, LIST_PATH, name)
        piped_id, _, piped_key = (await self._context.deduplicator.run(key, register)).partition(
            " "
        )
        return self._show_key(request, session, (piped_id, name), piped_key)

    async def add_key(self, request: Request, session: BrowserSession) -> Response:
        piped_id = request.path_params["id"]
        # Read before there is a key, which would be lost if this failed.
        piped = await self._context.cases.access.piped(piped_id, by=session.user)
        # Without the deduplicator a double click would fail because there are two keys already,
        # and the response with the key would be lost.
        piped_key = await self._context.deduplicator.run(
            (session.token, request.url.path),
            lambda: self._context.cases.pipeds.add_key(piped_id, by=session.user),
        )
        return self._show_key(
            request,
            session,
            (piped_id, piped.name),
            piped_key,
            never_started=not piped.started_at,
        )

    def _show_key(
        self,
        request: Request,
        session: BrowserSession,
        piped: tuple[str, str],
        piped_key: str,
        *,
        never_started: bool = False,
    ) -> Response:
        """The only response with the key of a piped, given by ID and name; no URL leads to it."""
        encoded = b64encode(piped_key.encode()).decode()
        is_registration = "id" not in request.path_params
        snippet, command = self._start(request, session, piped[0], encoded)
        return self._context.render(
            request,
            "piped_key.html",
            id=piped[0],
            name=piped[1],
            key=piped_key,
            encoded=encoded,
            is_registration=is_registration,
            is_new=is_registration or never_started,
            snippet=snippet,
            command=command,
        )

    def _start(
        self, request: Request, session: BrowserSession, piped_id: str, key: str = _OWN_KEY
    ) -> tuple[str, str]:
        """The configuration and the command that start a piped."""
        url = urlsplit(self._context.public_url(request))
        address = url.netloc if url.port else f"{url.netloc}:{_PORTS.get(url.scheme, 443)}"
        insecure = " --insecure" if url.scheme == "http" else ""
        snippet = _SNIPPET.format(
            project=session.user.project, id=piped_id, key=key, address=address
        )
        return snippet, f"piped run --config-file piped.yaml{insecure}"

    async def edit(self, piped_id: str, form: FormData, user: User) -> None:
        name, description = _required_name(form), _text(form, "description")
        await self._context.cases.pipeds.update(piped_id, name, description, by=user)

    async def upgrade(self, request: Request, session: BrowserSession) -> Response:
        """Requests one version of all selected pipeds."""
        await self._context.cases.access.require(session.user, _UPDATE)
        form, pipeds = await request.form(), self._context.cases.pipeds
        version = _version(form)
        own = {piped.id for piped in await pipeds.list(by=session.user)}
        # An unknown id changes nothing, rather than some of the pipeds.
        selected = list(dict.fromkeys(map(str, form.getlist("piped"))))
        if not selected or not own.issuperset(selected):
            raise UserMistake("Select at least one piped of this project.")
        await pipeds.set_desired_version(version, selected, by=session.user)
        several = plural(len(selected), "piped")
        text = f"{version} is requested of {several}; the list shows which run it."
        if not version:
            text = f"The launchers of {several} choose the version again."
        return self._context.redirect(session, LIST_PATH, Flash(text))

    async def set_desired_version(self, piped_id: str, form: FormData, user: User) -> None:
        version = _version(form)
        await self._context.cases.pipeds.set_desired_version(version, [piped_id], by=user)

    async def enable(self, piped_id: str, _form: FormData, user: User) -> None:
        await self._context.cases.pipeds.enable(piped_id, by=user)

    async def disable(self, piped_id: str, _form: FormData, user: User) -> None:
        await self._context.cases.pipeds.disable(piped_id, by=user)

    async def delete_old_keys(self, piped_id: str, _form: FormData, user: User) -> None:
        await self._context.cases.pipeds.delete_old_keys(piped_id, by=user)


def _text(form: FormData, name: str) -> str:
    return str(form.get(name, "")).strip()


def _version(form: FormData) -> str:
    """The version of a form; empty if the launcher may choose."""
    version = _text(form, "version")
    if version and not _VERSION.fullmatch(version):
        raise UserMistake(f"{version!r} is not a version; write it like v0.1.0.")
    return version


def _required_name(form: FormData) -> str:
    name = _text(form, "name")
    if not name:
        raise UserMistake("Fill in the name.")
    return name


def _topics(rows: tuple[PipedRow, ...], error: FormError | None) -> str:
    """What the page follows; a page with a form error must not replace itself."""
    if error:
        return ""
    restarts = [f"cmd:{row.restart}" for row in rows if row.restart]
    return ",".join(["pipeds", *restarts][:MAX_TOPICS])
