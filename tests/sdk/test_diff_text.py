# SPDX-License-Identifier: Apache-2.0
"""Differences are written in upstream's form."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipecd.sdk.diff import compare, render

LIVE: dict[str, Any] = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "containers": [
                    {"args": ["a", "b"], "image": "web:v1", "ports": [{"containerPort": 80}]},
                    {"name": "side"},
                ]
            }
        },
    },
}
DESIRED: dict[str, Any] = {
    "metadata": {"labels": {"app": "web", "extra": "1"}},
    "spec": {
        "replicas": 3,
        "template": {
            "spec": {
                "containers": [
                    {
                        "args": ["a", "c"],
                        "image": "web:v2",
                        "ports": [
                            {"containerPort": 80},
                            {"name": "metrics", "containerPort": 8080},
                        ],
                    },
                    {"name": "side", "resources": {"limits": {"memory": "1Gi", "cpu": "1"}}},
                ]
            }
        },
    },
}
TEXT = """\
  metadata:
    labels:
      #metadata.labels.extra
+     extra: 1

  spec:
    #spec.replicas
-   replicas: 2
+   replicas: 3

    template:
      spec:
        containers:
          - args:
              #spec.template.spec.containers.0.args.1
-             - b
+             - c

            #spec.template.spec.containers.0.image
-           image: web:v1
+           image: web:v2

            ports:
              #spec.template.spec.containers.0.ports.1
+             - containerPort: 8080
+               name: metrics

          -
            #spec.template.spec.containers.1.resources
+           resources:
+             limits:
+               cpu: 1
+               memory: 1Gi

"""


def test_differences_are_rendered_below_their_ancestors() -> None:
    assert render(compare(LIVE, DESIRED)) == TEXT


def test_values_at_masked_paths_are_hidden() -> None:
    nodes = compare({"data": {"a": "old"}}, {"data": {"a": "new", "b": {"c": "more"}}})
    text = render(nodes, masked=("data", "stringData"))
    assert text == (
        "  data:\n    #data.a\n-   a: *****\n+   a: *****\n\n    #data.b\n+   b: *****\n\n"
    )


def test_every_line_of_a_long_text_has_its_mark() -> None:
    text = render(compare({"a": "x"}, {"a": "one\ntwo"}))
    assert text == "  #a\n- a: x\n+ a: one\n+   two\n\n"


def test_no_difference_renders_nothing() -> None:
    assert render([]) == ""


@given(st.dictionaries(st.text("ab", min_size=1, max_size=2), st.lists(st.text("x\n", max_size=3))))
def test_every_changed_line_begins_with_its_mark(document: dict[str, Any]) -> None:
    lines = render(compare({}, document)).splitlines()
    assert all(line == "" or line[0] in "+ " for line in lines)
