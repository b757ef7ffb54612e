# SPDX-License-Identifier: Apache-2.0
"""What is offered to be added, and why nothing is."""

import pytest

from pipecd.controlplane.console.add_application_view import matching, offered, why_empty
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


def piped(id: str = "p1", *, online: bool = True, disabled: bool = False, repos: int = 1) -> Piped:
    return Piped(
        id=id,
        name=f"dev-{id}",
        disabled=disabled,
        status=Piped.ONLINE if online else Piped.OFFLINE,
        repositories=[SITE] * repos,
    )


def test_what_was_added_a_moment_ago_is_not_offered_again() -> None:
    git = ApplicationGitPath(repo=SITE, path="cart", config_filename="app.pipecd.yaml")
    added = Application(piped_id="p1", git_path=git)
    left = offered(
        [found("cart"), found("cart", file="b.pipecd.yaml"), found("cart", piped="p2")],
        [added],
        None,
    )
    assert [(info.piped_id, info.config_filename) for info in left] == [
        ("p1", "b.pipecd.yaml"),
        ("p2", "app.pipecd.yaml"),
    ]


def test_a_piped_that_is_disabled_or_gone_offers_nothing() -> None:
    infos = [found("a1"), found("b1", piped="p2"), found("c1", piped="p3")]
    left = offered(infos, [], [piped("p1"), piped("p2", disabled=True)])
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
def test_found_applications_can_be_looked_for(text: str, paths: list[str]) -> None:
    assert [info.path for info in matching([found("cart"), found("shop")], text)] == paths


@pytest.mark.parametrize(
    ("pipeds", "title", "text"),
    [
        pytest.param([], "No piped looks", "Register one", id="no piped"),
        pytest.param([piped(disabled=True)], "No piped looks", "", id="only a disabled piped"),
        pytest.param(
            [piped(online=False)], "No piped is looking now", "dev-p1 is offline", id="one away"
        ),
        pytest.param(
            [piped("p1", online=False), piped("p2", online=False)],
            "No piped is looking now",
            "The pipeds dev-p1 and dev-p2 are offline",
            id="all away",
        ),
        pytest.param(
            [piped(repos=0)], "No repository", "dev-p1 watches no repository", id="no repository"
        ),
        pytest.param([piped()], "Pipeds found nothing", "pipectl lint", id="all is added"),
        pytest.param(None, "Pipeds found nothing", "pipectl lint", id="who may not see the pipeds"),
    ],
)
def test_an_empty_list_says_why(pipeds: list[Piped] | None, title: str, text: str) -> None:
    empty = why_empty(pipeds)
    assert title in empty.title
    assert text in empty.text
