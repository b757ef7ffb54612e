# SPDX-License-Identifier: Apache-2.0
"""The URL of a list is its state."""

import pytest
from starlette.datastructures import QueryParams

from pipecd.controlplane.console.list_filters import (
    PageUrl,
    canonical_params,
    parse_application_query,
    parse_deployment_query,
    parse_labels,
)


def test_a_bookmark_of_the_upstream_console_means_the_same() -> None:
    query = parse_application_query(
        QueryParams("kind=0&syncStatus=3&labels%5B0%5D=env:dev&page=2&activeStatus=enabled")
    )
    datastore_filter = query.filter("shop")
    assert (query.platforms, query.statuses, dict(datastore_filter.labels)) == (
        ("0",),
        ("3",),
        {"env": "dev"},
    )
    assert (query.page, datastore_filter.enabled, datastore_filter.project) == (2, True, "shop")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        pytest.param("labels[0]=a:b&labels[1]=c:d", {"a": "b", "c": "d"}, id="several pairs"),
        pytest.param("labels[0]=a:b:c", {"a": "b:c"}, id="a value may have a colon"),
        pytest.param("labels[0]=a", {}, id="one part is no pair"),
        pytest.param("labels[x]=a:b", {}, id="the index is a number"),
    ],
)
def test_labels_in_the_url(text: str, pairs: dict[str, str]) -> None:
    assert parse_labels(QueryParams(text)) == pairs


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        pytest.param("status=2", (2,), id="one"),
        pytest.param("status=2,5", (2, 5), id="several with a comma"),
        pytest.param("status=2&status=5", (2, 5), id="several times"),
        pytest.param("status=99,x,-1", (), id="invalid values are ignored"),
    ],
)
def test_statuses_in_the_url(text: str, statuses: tuple[int, ...]) -> None:
    assert parse_deployment_query(QueryParams(text)).statuses == statuses


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        pytest.param("syncStatus=3", ("3",), id="upstream's bookmark"),
        pytest.param("syncStatus[0]=3&syncStatus[1]=4", ("3", "4"), id="with an index"),
        pytest.param("status=OUT_OF_SYNC,synced", ("3", "1"), id="names of the API"),
        pytest.param("status=never-deployed", ("never-deployed",), id="a status of our own"),
        pytest.param("status=", (), id="nothing"),
    ],
)
def test_statuses_of_applications_in_bookmarks(text: str, statuses: tuple[str, ...]) -> None:
    params = canonical_params(QueryParams(text), status="syncStatus")
    assert parse_application_query(params).statuses == statuses
    assert len(parse_application_query(params).active_filters()) == bool(statuses)


@pytest.mark.parametrize(
    ("text", "statuses", "waiting"),
    [
        pytest.param("status=5", (5,), False, id="upstream's bookmark"),
        pytest.param("status[0]=2&status[1]=5", (2, 5), False, id="with an index"),
        pytest.param("status=DEPLOYMENT_FAILURE,SUCCESS", (5, 4), False, id="names of the API"),
        pytest.param("status=waiting,5", (5,), True, id="waiting for approval"),
    ],
)
def test_statuses_of_deployments_in_bookmarks(
    text: str, statuses: tuple[int, ...], *, waiting: bool
) -> None:
    query = parse_deployment_query(canonical_params(QueryParams(text), status="status"))
    assert (query.statuses, query.waiting) == (statuses, waiting)


def test_waiting_for_approval_filters_running_deployments() -> None:
    query = parse_deployment_query(QueryParams("waiting=approval"))
    assert query.filter("shop").statuses == (2,)


def test_a_changed_parameter_keeps_the_others_and_resets_the_page() -> None:
    url = PageUrl("/applications", QueryParams("q=cart&page=3&cmd=x&kind="), reset=("page",))
    assert url.with_params(sort="name") == "/applications?q=cart&sort=name"
    assert url.with_params(q="") == "/applications"
    assert url.with_params(page=2) == "/applications?q=cart&page=2"


def test_every_filter_can_be_removed_alone() -> None:
    query = parse_application_query(QueryParams("q=cart&syncStatus=3,1&pipedId=p1&page=2"))
    chips = {
        chip.text: chip.href for chip in query.url().chips(query.active_filters({"p1": "tokyo"}))
    }
    assert chips == {
        "“cart”": "/applications?syncStatus=3%2C1&pipedId=p1",
        "Out of sync or synced": "/applications?q=cart&pipedId=p1",
        "piped: tokyo": "/applications?q=cart&syncStatus=3%2C1",
    }


def test_a_label_is_added_to_the_filters() -> None:
    url = PageUrl("/applications", QueryParams("labels[0]=env:dev&page=2"), ("page",))
    assert url.with_label("env: dev") == "/applications?labels%5B0%5D=env%3Adev"
    more = "/applications?labels%5B0%5D=env%3Adev&labels%5B1%5D=team%3Apay"
    assert url.with_label("team: pay") == more


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("labels[0]=x", id="a label without a value"),
        pytest.param("labels[x]=a:b", id="a label without a number"),
        pytest.param("activeStatus=x", id="neither enabled nor disabled"),
        pytest.param("waiting=approval&since=24h&applicationId=a1", id="filters of another list"),
        pytest.param("kind=2,1e9,%3Cb&syncStatus=99&health=x", id="values that do not exist"),
        pytest.param("sort=name&dir=desc&size=20&page=2&cmd=c1", id="order and page"),
    ],
)
def test_what_filters_nothing_has_no_chip(text: str) -> None:
    query = parse_application_query(QueryParams(text))
    assert query.active_filters() == ()
    assert query.url().chips(query.active_filters()) == ()


def test_a_chip_names_platforms_as_they_are_written() -> None:
    (kinds,) = parse_deployment_query(QueryParams("kind=5,3,process")).active_filters()
    assert (kinds.param, kinds.value) == ("kind", "5,3,process")
    assert kinds.text == "ECS or Lambda or process"


def test_labels_stay_when_one_is_removed_and_another_added() -> None:
    query = parse_application_query(QueryParams("labels[0]=env:dev&labels[1]=team:pay"))
    without_first = query.url().chips(query.active_filters())[0].href
    remaining = parse_application_query(QueryParams(without_first.partition("?")[2]))
    assert remaining.labels == {"team": "pay"}
    more = remaining.url().with_label("url: http://x")
    both = parse_application_query(QueryParams(more.partition("?")[2]))
    assert both.labels == {"team": "pay", "url": "http://x"}


@pytest.mark.parametrize(
    ("text", "controls", "fields"),
    [
        pytest.param(
            "q=cart&size=20&sort=name&dir=desc&page=3&cmd=c1",
            ("q",),
            (("sort", "name"), ("dir", "desc"), ("size", "20")),
            id="order and size stay, the page does not",
        ),
        pytest.param(
            "labels[4]=env:dev&pipedId=p1",
            ("pipedId",),
            (("labels[0]", "env:dev"),),
            id="labels are numbered from zero",
        ),
    ],
)
def test_a_filter_form_keeps_the_rest_of_the_state(
    text: str, controls: tuple[str, ...], fields: tuple[tuple[str, str], ...]
) -> None:
    assert parse_application_query(QueryParams(text)).url().hidden_fields(*controls) == fields


def test_the_url_of_a_query_means_the_same_query() -> None:
    text = "q=x&status=waiting,2&kind=5&applicationName=cart&pipedId=p&labels[0]=a:b&since=7d"
    query = parse_deployment_query(QueryParams(text))
    again = query.url().with_params().partition("?")[2]
    assert parse_deployment_query(QueryParams(again)) == query
