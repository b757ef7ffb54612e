# SPDX-License-Identifier: Apache-2.0
"""Times, durations, counts and links as text."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from pipecd.controlplane.console import formatting
from pipecd.model.clock import to_unix

NOW = datetime(2026, 8, 22, 17, 23, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(-30, "just now", id="a clock that is ahead counts as now"),
        pytest.param(9, "just now", id="a few seconds are now"),
        pytest.param(10, "10 s ago", id="then seconds are counted"),
        pytest.param(60, "1 min ago", id="then minutes"),
        pytest.param(3599, "59 min ago", id="up to an hour"),
        pytest.param(3600, "1 h ago", id="then hours"),
        pytest.param(86400, "1 day ago", id="one day"),
        pytest.param(86400 * 29, "29 days ago", id="days up to a month"),
        pytest.param(86400 * 65, "2 months ago", id="months"),
        pytest.param(86400 * 800, "2 years ago", id="years"),
    ],
)
def test_how_long_ago(seconds: int, text: str) -> None:
    assert formatting.ago(seconds) == text


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        pytest.param(("env: prod", "team: checkout", "tier: back"), 2, id="whole ones"),
        pytest.param(("env: staging", "team: recommendations", "tier: back"), 1, id="fewer"),
        pytest.param(("env: dev", "team: web"), 2, id="all without a count of others"),
        pytest.param(("team: " + "x" * 60, "tier: back"), 1, id="at least one"),
    ],
)
def test_a_column_has_labels_that_fit_whole(labels: tuple[str, ...], shown: int) -> None:
    assert tuple(formatting.fitting_labels(labels)) == labels[:shown]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(-1, "0s", id="never negative"),
        pytest.param(48, "48s", id="seconds"),
        pytest.param(65, "1m 05s", id="minutes and seconds"),
        pytest.param(3600 * 2 + 300, "2h 05m", id="hours and minutes"),
        pytest.param(86400 * 3 + 3600 * 4, "3d 04h", id="days and hours"),
    ],
)
def test_a_duration(seconds: int, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_a_timestamp_has_its_exact_time() -> None:
    shown = formatting.timestamp(to_unix(NOW) - 180, NOW)
    assert shown is not None
    assert shown.relative == "3 min ago"
    assert shown.exact == "2026-08-22 17:20:06 UTC"
    assert shown.iso == "2026-08-22T17:20:06Z"


def test_a_time_that_is_not_set_is_not_shown() -> None:
    assert formatting.timestamp(0, NOW) is None


@pytest.mark.parametrize(
    ("at", "zone", "text"),
    [
        pytest.param(datetime(2026, 8, 22, 1, tzinfo=UTC), "UTC", "Today", id="today"),
        pytest.param(
            datetime(2026, 8, 22, 1, tzinfo=UTC),
            "America/Los_Angeles",
            "Yesterday",
            id="the day is that of the reader's zone",
        ),
        pytest.param(
            datetime(2026, 8, 3, 12, tzinfo=UTC),
            "UTC",
            "Monday, 3 August 2026",
            id="older days are written out",
        ),
    ],
)
def test_the_heading_of_a_day(at: datetime, zone: str, text: str) -> None:
    assert formatting.day_heading(to_unix(at), NOW.astimezone(ZoneInfo(zone))) == text


@pytest.mark.parametrize(
    ("url", "link"),
    [
        pytest.param("https://git.example/c/1", "https://git.example/c/1", id="https is followed"),
        pytest.param("git.example/c/1", "https://git.example/c/1", id="no scheme means https"),
        pytest.param("javascript:alert(1)", "", id="a script is never a link"),
        pytest.param("JavaScript:alert(1)", "", id="a script in capitals neither"),
        pytest.param("java\tscript:alert(1)", "", id="a script with a tab neither"),
        pytest.param("data:text/html,x", "", id="data is never a link"),
        pytest.param("//evil.example/x", "", id="no host of another page"),
        pytest.param("https://", "", id="an address needs a host"),
        pytest.param("http://[broken", "", id="a broken address is no link"),
        pytest.param("relative", "", id="a word is no address"),
        pytest.param("", "", id="an empty text"),
    ],
)
def test_links_from_data(url: str, link: str) -> None:
    assert formatting.safe_link(url) == link


@pytest.mark.parametrize(
    ("number", "text"),
    [
        pytest.param(1, "1 stage", id="one"),
        pytest.param(0, "0 stages", id="none"),
        pytest.param(9999, "9,999 stages", id="exact to four digits"),
        pytest.param(12345, "12k+ stages", id="rounded beyond"),
    ],
)
def test_counted_things(number: int, text: str) -> None:
    assert formatting.plural(number, "stage") == text


@pytest.mark.parametrize(
    ("name", "letters"),
    [
        pytest.param("ada.lovelace", "AL", id="first letters of two words"),
        pytest.param("admin", "AD", id="first two letters of one word"),
        pytest.param("-x", "-X", id="a name with punctuation"),
        pytest.param("", "?", id="no name"),
    ],
)
def test_initials(name: str, letters: str) -> None:
    assert formatting.initials(name) == letters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("the stage failed", "The stage failed.", id="capital and full stop"),
        pytest.param("Done!", "Done!", id="an end is kept"),
        pytest.param("  ", "", id="only spaces"),
        pytest.param("replicaCount is unknown", "replicaCount is unknown.", id="an identifier"),
        pytest.param("app.pipecd.yaml:3: bad", "app.pipecd.yaml:3: bad.", id="a file name"),
        pytest.param("deployment/web failed", "deployment/web failed.", id="a resource"),
        pytest.param("exited with code 1: ", "Exited with code 1.", id="nothing after a colon"),
        pytest.param("cart is deleted", "cart is deleted.", id="the name of an application"),
        pytest.param("replicas: 5", "replicas: 5.", id="a field"),
        pytest.param("helm: no such chart", "helm: no such chart.", id="a program"),
        pytest.param("it-service is down", "it-service is down.", id="a name with a dash"),
        pytest.param("timed out", "Timed out.", id="what happened"),
        pytest.param("failed.", "Failed.", id="one word"),
        pytest.param(
            "deploy target here is unusable",
            "Deploy target here is unusable.",
            id="a deploy target",
        ),
    ],
)
def test_a_sentence(text: str, expected: str) -> None:
    assert formatting.sentence(text) == expected


def test_words_in_a_row() -> None:
    assert formatting.join_words(["a"]) == "a"
    assert formatting.join_words(["a", "b", "c"]) == "a, b and c"
    assert formatting.join_words(["a", "b"], "or") == "a or b"


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        pytest.param("UTC", "2026-08-22 17:23:06 UTC", id="without a time zone of the browser"),
        pytest.param("Europe/Berlin", "2026-08-22 19:23:06 CEST", id="in the reader's zone"),
        pytest.param("America/Sao_Paulo", "2026-08-22 14:23:06 UTC-03", id="without a name"),
    ],
)
def test_times_name_their_zone(zone: str, text: str) -> None:
    shown = formatting.timestamp(to_unix(NOW), NOW.astimezone(ZoneInfo(zone)))
    assert shown
    assert (shown.exact, shown.iso) == (text, "2026-08-22T17:23:06Z")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        pytest.param("cart", "cart", id="a plain name"),
        pytest.param("\u202ecart", "\u2068\u202ecart\u2069", id="a mark of direction"),
        pytest.param("\u2067c\u2069a\u2068rt", "\u2068cart\u2069", id="isolates without end"),
        pytest.param("עגלה", "\u2068עגלה\u2069", id="from right to left"),
    ],
)
def test_a_name_in_a_title(name: str, title: str) -> None:
    assert formatting.isolate(name) == title
