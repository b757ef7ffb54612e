# SPDX-License-Identifier: Apache-2.0
"""Sensitive values, which no log, difference, error or tree may show.

Terraform masks what it knows to be sensitive. It does not know what a provider computes from such
a value, what a program prints, and what somebody declared to be public by mistake. So a sensitive
text is masked wherever it occurs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

MASK = "(sensitive value)"
# A shorter text, such as a port, occurs in other places by chance; so does a line of a longer one.
_SHORTEST_SECRET, _SHORTEST_LINE = 4, 8


class Secrets:
    """The sensitive texts that are known so far."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._forms: list[str] = []
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """Adds texts; they are masked from now on."""
        forms = {form for text in texts for form in _forms(text)}
        # The longest first, because a secret may be a part of another.
        self._forms = sorted(forms.union(self._forms), key=len, reverse=True)

    def hide(self, text: str) -> str:
        """Returns the text with every secret in it masked."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return text


def _forms(text: str) -> Iterator[str]:
    """Yields how a text is printed: as it is, quoted, and by line."""
    if len(text) < _SHORTEST_SECRET:
        return
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    if "\n" in text:
        for line in text.splitlines():
            if len(line.strip()) >= _SHORTEST_LINE:
                yield line.strip()


def masked(value: Any, sensitive: Any) -> object:
    """Returns a value in which everything marked as sensitive is masked.

    Terraform marks in a value of the same shape, in which `true` covers everything below it.
    """
    if sensitive is True:
        return MASK
    if isinstance(value, dict) and isinstance(sensitive, dict):
        marks = cast("dict[str, Any]", sensitive)
        return {k: masked(v, marks.get(k)) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list) and isinstance(sensitive, list):
        items, marks_of = cast("list[Any]", value), cast("list[Any]", sensitive)
        rest = [None] * max(len(items) - len(marks_of), 0)
        return [masked(v, mark) for v, mark in zip(items, [*marks_of, *rest], strict=False)]
    return cast("object", value)


def marked_texts(value: Any, sensitive: Any) -> Iterator[str]:
    """Yields the texts in the parts of a value that are marked as sensitive."""
    if isinstance(value, dict):
        for key, each in cast("dict[str, Any]", value).items():
            marks = cast("dict[str, Any]", sensitive) if isinstance(sensitive, dict) else {}
            yield from marked_texts(each, True if sensitive is True else marks.get(key))
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        marks = cast("list[Any]", sensitive) if isinstance(sensitive, list) else []
        for index, each in enumerate(items):
            mark = marks[index] if index < len(marks) else None
            yield from marked_texts(each, True if sensitive is True else mark)
    elif isinstance(value, str) and sensitive is True:
        yield value


def plan_secrets(document: Mapping[str, Any]) -> set[str]:
    """Returns the sensitive texts in the JSON of a plan."""
    found = set[str]()
    outputs = _map(document, "output_changes").values()
    for change in (
        *(_map(resource, "change") for resource in _maps(document, "resource_changes")),
        *(_map(resource, "change") for resource in _maps(document, "resource_drift")),
        *(cast("dict[str, Any]", output) for output in outputs if isinstance(output, dict)),
    ):
        for side in ("before", "after"):
            found |= set(marked_texts(change.get(side), change.get(f"{side}_sensitive")))
    declared = _map(_map(_map(document, "configuration"), "root_module"), "variables")
    given = _map(document, "variables")
    for name in declared:
        if _map(declared, name).get("sensitive"):
            found |= set(marked_texts(_map(given, name).get("value"), True))
    return found


def state_secrets(document: Mapping[str, Any]) -> set[str]:
    """Returns the sensitive texts in the JSON of a state."""
    values = _map(document, "values")
    found = set(_module_secrets(_map(values, "root_module")))
    for name, output in _map(values, "outputs").items():
        if _map(_map(values, "outputs"), name).get("sensitive"):
            found |= set(marked_texts(cast("dict[str, Any]", output).get("value"), True))
    return found


def _module_secrets(module: Mapping[str, Any]) -> Iterator[str]:
    for resource in _maps(module, "resources"):
        yield from marked_texts(resource.get("values"), resource.get("sensitive_values"))
    for child in _maps(module, "child_modules"):
        yield from _module_secrets(child)


def _map(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _maps(value: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = value.get(key)
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
