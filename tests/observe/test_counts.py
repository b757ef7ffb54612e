# SPDX-License-Identifier: Apache-2.0
"""Our own figures read like those of the library."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from pipecd.observe.metrics import Counts, Spreads

LABELS = ("store", "operation")
BOUNDS = (0.001, 0.25, 1, 30)
texts = st.sampled_from(("a", "b", 'quoted "', "line\n", "ü"))
values = st.one_of(st.floats(0, 100), st.sampled_from(BOUNDS))


def page(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)


@given(st.lists(st.tuples(texts, texts)))
def test_counters_show_what_the_library_shows(counted: list[tuple[str, str]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts = Counts("shop_sold", "What was sold.", LABELS, registry=ours)
    counter = Counter("shop_sold", "What was sold.", LABELS, registry=theirs)
    for labels in counted:
        counts.of(*labels).add()
        counter.labels(*labels).inc()
    assert page(ours) == page(theirs)


@given(st.lists(st.tuples(texts, texts, values)))
def test_histograms_show_what_the_library_shows(seen: list[tuple[str, str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spreads = Spreads("shop_wait_seconds", "How long.", LABELS, BOUNDS, registry=ours)
    histogram = Histogram("shop_wait_seconds", "How long.", LABELS, buckets=BOUNDS, registry=theirs)
    for store, operation, value in seen:
        spreads.of(store, operation).add(value)
        histogram.labels(store, operation).observe(value)
    assert page(ours) == page(theirs)
