# SPDX-License-Identifier: Apache-2.0
"""Which applications can be added, and why there are none."""

import pytest

from pipecd.controlplane.console.add_application_view import (
    manual_form,
    search,
    unregistered_applications,
    why_empty,
)
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import (
    ApplicationGitPath,
    ApplicationGitRepository,
    ApplicationInfo,
)
from pipecd.proto.model.piped_pb2 import Piped

SITE = ApplicationGitRepository(id="site")


def found(path: str, piped: str = "p1", file: str = "app.pipecd.yaml") -> ApplicationInfo:
    return ApplicationInfo(
        name=path.upper(),
        repo_id="site",
        path=path,
        config_filename=file,
        piped_id=piped,
        labels={"team": "blue"},
    )


def piped(
    id: str = "p1",
    *,
    online: bool = True,
    disabled: bool = False,
    repos: int = 1,
    started: bool = True,
) -> Piped:
    return Piped(
        id=id,
        name=f"dev-{id}",
        disabled=disabled,
        status=Piped.ONLINE if online else Piped.OFFLINE,
        repositories=[SITE] * repos,
        started_at=int(started),
    )


def test_an_application_added_a_moment_ago_is_not_listed() -> None:
    git = ApplicationGitPath(repo=SITE, path="cart", config_filename="app.pipecd.yaml")
    added = Application(piped_id="p1", git_path=git)
    left = unregistered_applications(
        [found("cart"), found("cart", file="b.pipecd.yaml"), found("cart", piped="p2")],
        [added],
        None,
    )
    assert [(info.piped_id, info.config_filename) for info in left] == [
        ("p1", "b.pipecd.yaml"),
        ("p2", "app.pipecd.yaml"),
    ]


def test_disabled_and_removed_pipeds_list_nothing() -> None:
    infos = [found("a1"), found("b1", piped="p2"), found("c1", piped="p3")]
    left = unregistered_applications(infos, [], [piped("p1"), piped("p2", disabled=True)])
    assert [info.path for info in left] == ["a1"]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        pytest.param("", ["cart", "shop"], id="everything"),
        pytest.param("Cart", ["cart"], id="a name or path in any case"),
        pytest.param("team: b", ["cart", "shop"], id="a label"),
        pytest.param("zzz", [], id="nothing"),
    ],
)
def test_search(text: str, paths: list[str]) -> None:
    assert [info.path for info in search([found("cart"), found("shop")], text)] == paths


@pytest.mark.parametrize(
    ("pipeds", "title", "text"),
    [
        pytest.param([], "No piped is enabled", "Add a piped", id="no piped"),
        pytest.param([piped(disabled=True)], "No piped is enabled", "", id="only a disabled piped"),
        pytest.param(
            [piped(online=False)], "No piped is online", "dev-p1 is offline", id="one offline"
        ),
        pytest.param(
            [piped("p1", online=False), piped("p2", online=False)],
            "No piped is online",
            "The pipeds dev-p1 and dev-p2 are offline",
            id="all offline",
        ),
        pytest.param(
            [piped("p1", online=False), piped("p2", online=False, started=False)],
            "No piped is online",
            "dev-p1 is offline",
            id="one offline and one never started",
        ),
        pytest.param(
            [piped(online=False, started=False)],
            "No piped is started yet",
            "dev-p1 is registered",
            id="never started",
        ),
        pytest.param(
            [piped(repos=0)], "No repository", "dev-p1 watches no repository", id="no repository"
        ),
        pytest.param([piped()], "No unregistered applications", "pipectl lint", id="all is added"),
        pytest.param(
            None,
            "No unregistered applications",
            "pipectl lint",
            id="a user without access to pipeds",
        ),
    ],
)
def test_an_empty_list_says_why(pipeds: list[Piped] | None, title: str, text: str) -> None:
    empty = why_empty(pipeds)
    assert title in empty.title
    assert text in empty.text


def test_the_manual_form_begins_with_a_piped_that_can_deploy_now() -> None:
    pipeds = [piped("p1", online=False), piped("p2", repos=0), piped("p3")]
    form = manual_form(pipeds, "", "")
    assert form is not None
    assert form.piped.id == "p3"
    chosen = manual_form(pipeds, "p1", "")
    assert chosen is not None
    assert chosen.piped.id == "p1"
