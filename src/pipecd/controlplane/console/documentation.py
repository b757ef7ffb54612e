# SPDX-License-Identifier: Apache-2.0
"""The documentation of this version, what is new in it, and the keys of the keyboard."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.console.markdown import render_document, web_link
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.model.errors import NotFound

PATH = "/help"
CHANGES = "whats-new"
_PACKAGE = Path(__file__).parents[2]
# At the end of a change; readers of the console have no access to them.
_ISSUES = re.compile(r"\s+\(#\d+(?:, #\d+)*\)(?=\s)")
_GUIDE_LINK = re.compile(r"(?:\./)?([a-z-]+)\.md(#[\w-]*)?")
# The pages of the guide by what a reader wants to do.
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Deploy", ("quickstart", "console", "deployments", "stages", "configuration", "plan-preview",
                "chains", "drift", "event-watcher", "secrets", "notifications", "webhooks")),
    ("Platforms", ("kubernetes", "terraform", "ecs", "lambda", "cloud-run", "process", "plugins")),
    ("Install", ("installation", "piped-installation", "systemd", "compose", "helm",
                 "ecs-control-plane", "packages", "sizing", "air-gapped", "launcher", "migration")),
    ("Operate", ("operations", "sign-in", "control-plane-configuration", "piped-configuration",
                 "monitoring", "backup", "upgrade", "capacity", "dogfooding")),
    ("Commands and API", ("commands", "api")),
)  # fmt: skip
_OTHERS = "More"
_ABOUT: Mapping[str, str] = {
    "Deploy": "From a commit to what runs.",
    "Platforms": "What a piped deploys to, and how.",
    "Install": "A control plane and its pipeds, from a trial to a fleet.",
    "Operate": "Configure, watch, back up and upgrade.",
    "Commands and API": "For scripts and other programs.",
}

# What a reader finds on each page, in a line of the index.
_SUMMARIES: Mapping[str, str] = {
    "quickstart": "A whole PipeCD on your machine, to try it.",
    "console": "Every page of this console and what it can do.",
    "deployments": "From the trigger to the end, and why one waits.",
    "stages": "The stages that a pipeline can have.",
    "configuration": "Every key of app.pipecd.yaml.",
    "plan-preview": "What merging a branch would deploy.",
    "chains": "Deploy applications one after another.",
    "drift": "What runs, and how it differs from Git.",
    "event-watcher": "New image tags are written into Git by themselves.",
    "secrets": "Encrypted in Git, decrypted by one piped only.",
    "notifications": "To Slack, Teams, Discord, e-mail and webhooks.",
    "webhooks": "A push is deployed at once.",
    "kubernetes": "Manifests, Helm and Kustomize, in one or several clusters.",
    "terraform": "Plan, approve and apply a directory of Terraform files.",
    "ecs": "Services and standalone tasks.",
    "lambda": "Functions from an image, an archive or source code.",
    "cloud-run": "Services of Google Cloud, with canaries by traffic.",
    "process": "Programs on a machine, without a cluster or a cloud.",
    "plugins": "Stages and platforms of your own.",
    "installation": "A control plane to keep, its first project and a piped.",
    "piped-installation": "As a service, in Kubernetes or in a cloud.",
    "systemd": "Services that start at boot and restart after a failure.",
    "compose": "A control plane and a piped with two ready files.",
    "helm": "A chart of a control plane and one of a piped.",
    "ecs-control-plane": "On Fargate, with a database and a bucket of AWS.",
    "packages": "The wheel, executables, images and SBOM of a release.",
    "sizing": "Which database and how many replicas you need.",
    "air-gapped": "Install and run in a closed network.",
    "launcher": "Pipeds that are upgraded from this console.",
    "migration": "Keep the database, the pipeds and pipectl, step by step.",
    "operations": "Background jobs, metrics, traces and operator pages.",
    "sign-in": "Passwords, GitHub, OpenID Connect, roles and sessions.",
    "control-plane-configuration": "Every key of its file: datastore, filestore, sign-in.",
    "piped-configuration": "Every key of its file: repositories, plugins, targets.",
    "monitoring": "Alerts for Prometheus and dashboards for Grafana.",
    "backup": "What to save, and how to come back.",
    "upgrade": "To a new release while deployments go on.",
    "capacity": "Figures of one process on two cores.",
    "dogfooding": "Two installations that deploy each other.",
    "commands": "pipecd, pipectl, piped and launcher, with every flag.",
    "api": "gRPC and JSON over HTTP, for programs.",
}

# The keys of console.js and what they do.
KEYS = (
    (
        "Everywhere",
        (
            ("Ctrl K", "Find anything, and act"),
            ("/", "Search this list"),
            ("?", "This help"),
            ("Esc", "Close"),
        ),
    ),
    (
        "Go to",
        (
            ("g o", "Overview"),
            ("g a", "Applications"),
            ("g d", "Deployments"),
            ("g c", "Chains"),
            ("g t", "Traces"),
            ("g e", "Events"),
            ("g i", "Insights"),
            ("g s", "Settings"),
        ),
    ),
    ("In lists", (("j", "Next row"), ("k", "Previous row"), ("Enter", "Open"))),
    (
        "On a deployment",
        (("[", "Previous stage"), ("]", "Next stage"), ("f", "Follow the log")),
    ),
)


@dataclass(frozen=True)
class Document:
    """A page of the guide."""

    name: str
    text: str

    @cached_property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ").strip()

    @cached_property
    def summary(self) -> str:
        """What the page is about, else its first sentence unless it begins with a table."""
        if self.name in _SUMMARIES:
            return _SUMMARIES[self.name]
        text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", self.text.partition("\n")[2])
        body = text.strip().partition("\n\n")[0]
        if body.startswith("|"):
            return ""
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", body.replace("\n", " "))
        first = re.split(r"(?<=\w\.)\s", plain, maxsplit=1)[0]
        # What a list or sample would follow says nothing without it.
        return "" if first.endswith(":") else first


class DocumentationPages:
    """Routes and handlers of the documentation."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    @cached_property
    def _documents(self) -> Mapping[str, Document]:
        """All pages, which are read for the first reader."""
        return read_documents()

    def routes(self) -> list[Route]:
        page = self._context.page
        return [
            Route(PATH, page(self.index), methods=["GET"]),
            Route(f"{PATH}/{{name}}", page(self.show_page), methods=["GET"]),
        ]

    async def index(self, request: Request, _session: BrowserSession) -> Response:
        return self._context.render(
            request,
            "documentation.html",
            groups=grouped_documents(self._documents),
            has_changes=CHANGES in self._documents,
            about=_ABOUT,
            keys=KEYS,
        )

    async def show_page(self, request: Request, _session: BrowserSession) -> Response:
        document = self._documents.get(request.path_params["name"])
        if document is None:
            raise NotFound("there is no such page of the documentation")
        groups = grouped_documents(self._documents)
        before, after = neighbours([*chain.from_iterable(groups.values())], document)
        return self._context.render(
            request,
            "document.html",
            document=document,
            groups=groups,
            before=before,
            after=after,
            rendered=render_document(document.text.partition("\n")[2], self._link),
        )

    def _link(self, url: str) -> str:
        """The address of a link on this control plane; empty for a file that is not served."""
        if url.startswith("#"):
            return url
        found = _GUIDE_LINK.fullmatch(url)
        if found and found[1] in self._documents:
            return f"{PATH}/{found[1]}{found[2] or ''}"
        return web_link(url)


def grouped_documents(documents: Mapping[str, Document]) -> dict[str, list[Document]]:
    """The pages of the guide by group; those of no group come last."""
    grouped = {name for _, names in _GROUPS for name in names} | {CHANGES}
    others = sorted(documents.keys() - grouped)
    groups = {
        title: [documents[name] for name in names if name in documents]
        for title, names in (*_GROUPS, (_OTHERS, tuple(others)))
    }
    return {title: group for title, group in groups.items() if group}


def neighbours(
    documents: Sequence[Document], document: Document
) -> tuple[Document | None, Document | None]:
    """The pages before and after one in the order of the guide."""
    if document not in documents:
        return None, None
    at = documents.index(document)
    before = documents[at - 1] if at else None
    return before, documents[at + 1] if at + 1 < len(documents) else None


def read_documents() -> dict[str, Document]:
    """The guide and the list of changes by name: in an installed package, or in a checkout."""
    directory = _PACKAGE / "documentation"
    guide, changes = directory / "guide", directory / "CHANGELOG.md"
    if not directory.exists():
        checkout = _PACKAGE.parents[1]
        guide, changes = checkout / "docs" / "guide", checkout / "CHANGELOG.md"
    documents = {path.stem: Document(path.stem, path.read_text()) for path in guide.glob("*.md")}
    if changes.exists():
        text = re.sub(r"<!--.*?-->", "", changes.read_text(), flags=re.DOTALL)
        text = _ISSUES.sub("", text)
        releases = text.partition("\n## ")
        documents[CHANGES] = Document(CHANGES, f"# What is new\n\n## {releases[2]}")
    return documents
