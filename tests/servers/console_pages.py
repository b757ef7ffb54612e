# SPDX-License-Identifier: Apache-2.0
"""The addresses of all pages of the console, so that no test of all pages forgets one.

The routes come from the console itself: a page that is not in the table below fails these tests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from starlette.routing import BaseRoute, Route

# Routes without a page of their own: files, streams, redirects, and the form of the first project,
# which is there only before a project is.
NO_PAGES = frozenset(
    {
        "/",
        "/_/stream",
        "/assets/{version}/{name}",
        "/auth/callback",
        "/auth/login",
        "/auth/login/static",
        "/auth/logout",
        "/deployments/{id}/stages/{stage}/log.txt",
        "/favicon.ico",
        "/insights.csv",
        "/settings",
        "/setup",
    }
)
# An address without a page, which has the page of such addresses.
NO_PAGE = "/nowhere"


@dataclass(frozen=True)
class ShownObjects:
    """The ids of what the pages of a project show."""

    application: str
    piped: str
    # Deployments that wait for an approval, have succeeded with changes, and have been rolled back.
    waiting: str
    succeeded: str
    failed: str
    chain: str
    event: str
    preview: str
    # A resource of the live state of the application, with its deploy target.
    resource: str = "tokyo/web-1"
    # What is in the log of the first stage of the deployment that waits.
    text_of_log: str = "line"
    # The first second of a day with deployments.
    day: int = 1767225600


def page_addresses(routes: Iterable[BaseRoute], shown: ShownObjects) -> tuple[str, ...]:
    """The addresses of every page, with what its parameters make it show."""
    table = _addresses(shown)
    paths = [
        route.path
        for route in routes
        if isinstance(route, Route) and "GET" in (route.methods or ())
    ]
    pages = [path for path in paths if path not in NO_PAGES]
    unknown = set(pages) - table.keys()
    assert not unknown, f"add the addresses of {sorted(unknown)} to servers/console_pages.py"
    stale = (table.keys() | NO_PAGES) - set(paths)
    assert not stale, f"the console has no route {sorted(stale)}"
    return (*(address for path in pages for address in table[path]), NO_PAGE)


def _addresses(shown: ShownObjects) -> Mapping[str, tuple[str, ...]]:
    application, waiting = f"/applications/{shown.application}", f"/deployments/{shown.waiting}"
    return {
        "/login": ("/login?switch=1&expired=page", "/login?switch=1&project=shop&expired=form"),
        "/overview": ("/overview",),
        "/applications": (
            "/applications",
            "/applications?health=unhealthy&labels[0]=env:dev",
            "/applications?q=none",
        ),
        "/applications/add": ("/applications/add",),
        "/applications/drift": ("/applications/drift", "/applications/drift?q=none&diff=split"),
        "/applications/sync": (f"/applications/sync?refused={shown.application}:disabled",),
        "/applications/{id}": (application, f"{application}?diff=split"),
        "/applications/{id}/live": (
            f"{application}/live",
            f"{application}/live?res={quote(shown.resource, safe='')}",
            f"{application}/live?view=graph",
        ),
        "/applications/{id}/encrypt": (f"{application}/encrypt",),
        "/applications/{id}/settings": (f"{application}/settings",),
        "/deployments": ("/deployments", "/deployments?q=none"),
        "/deployments/{id}": (
            waiting,
            f"{waiting}?tab=changes",
            f"{waiting}?tab=timeline",
            f"{waiting}?stage=s1&find={shown.text_of_log}&only=matches",
            f"{waiting}?stage=s1&only=errors&at=1-2",
            f"/deployments/{shown.succeeded}?tab=changes&diff=split",
            f"/deployments/{shown.failed}",
            f"/deployments/{shown.failed}?tab=timeline",
        ),
        "/chains": ("/chains",),
        "/chains/{id}": (f"/chains/{shown.chain}",),
        "/plan-previews": (
            "/plan-previews",
            f"/plan-previews?applicationId={shown.application}",
        ),
        "/plan-previews/{id}": (
            f"/plan-previews/{shown.preview}",
            f"/plan-previews/{shown.preview}?app={shown.application}&diff=split",
        ),
        "/deployment-traces": ("/deployment-traces",),
        "/events": ("/events",),
        "/events/{id}": (f"/events/{shown.event}",),
        "/insights": ("/insights", "/insights?app=ch", f"/insights?range=1w&at={shown.day}"),
        "/search": ("/search?q=cart", "/search?q=none"),
        "/help": ("/help",),
        "/help/{name}": ("/help/console", "/help/kubernetes", "/help/whats-new"),
        "/settings/piped": ("/settings/piped",),
        "/settings/piped/{id}": (f"/settings/piped/{shown.piped}",),
        "/settings/api-key": ("/settings/api-key",),
        "/settings/users": ("/settings/users", "/settings/users?user=vera"),
        "/settings/project": ("/settings/project",),
        "/docs/api": ("/docs/api",),
    }
