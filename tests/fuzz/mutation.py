# SPDX-License-Identifier: Apache-2.0
"""Mutates samples of a format: their bytes, their words, and the tree of those that are YAML."""

import json
import random
from collections.abc import Sequence
from typing import Any

import yaml

ODD_TEXTS = (
    "", " ", "~", "null", "true", "no", "0", "-1", "1e309", "0x", "0o9", ".inf", ".nan", "1_000", "9" * 400, "9" * 5000,
    "a" * 3000, "é", "\u202e", "\ud7ff", "\ufeff", "\x00", "\x1b[", "\r", "\t", "..", "../..", "/", "//", "-", "--", "-x",
    "{{", "}}", "{{ . }}", "%s", "%*d", "$(id)", "`id`", "'", '"', "&a", "*a", "<<", "!!binary", "!!python/none", "|", ">",
    "---", "...", "%YAML 9.9", "a: b", "[", "]", "{", "}", "[[[[", "sha256:", "1h", "-5m", "2030-01-01T00:00:00Z",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, float("inf"), float("nan"),
    [], {}, [[]], [None], {"": ""}, {"a": {}}, {"name": "x"}, [{}], [{"name": "x"}, {"name": "x"}],
)  # fmt: skip


class Mutator:
    """Mutates samples with one source of randomness; `words` are those of the format."""

    def __init__(self, seed: str, words: Sequence[str] = ()) -> None:
        self.random = random.Random(seed)
        self._words = (*words, *ODD_TEXTS)

    def mutate(self, samples: Sequence[bytes]) -> bytes:
        """Returns a mutation of one of the samples, or bytes without meaning."""
        if self.random.random() < 0.03:
            return self.random.randbytes(self.random.choice((0, 1, 3, 20, 200, 3000)))
        sample = self.random.choice(samples)
        if self.random.random() < 0.4:
            sample = self._mutate_tree(sample)
        for _ in range(self.random.choice((0, 1, 1, 2, 3, 8))):
            change = self.random.choice(
                (self._cut, self._repeat, self._insert, self._insert, self._flip, self._number)
            )
            sample = change(sample)
        if self.random.random() < 0.05:
            sample = self._splice(sample, self.random.choice(samples))
        return sample

    def word(self) -> bytes:
        return self.random.choice(self._words).encode("utf-8", "surrogatepass")

    def _mutate_tree(self, sample: bytes) -> bytes:
        """Replaces, removes and renames parts of a YAML or JSON document."""
        try:
            tree = yaml.load(sample, yaml.CSafeLoader)
        except (yaml.YAMLError, ValueError):
            return sample
        for _ in range(self.random.choice((1, 1, 2, 4))):
            tree = self._change_node(tree)
        try:
            if sample.lstrip()[:1] in b"{[":
                return json.dumps(tree, default=str).encode()
            return yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=False).encode()
        except (yaml.YAMLError, TypeError, ValueError):
            return sample

    def _change_node(self, node: Any) -> Any:
        """Changes a part of a mapping or list, or replaces the node."""
        if self.random.random() < 0.85:
            if isinstance(node, dict) and node:
                return self._change_mapping(node)
            if isinstance(node, list) and node:
                index = self.random.randrange(len(node))
                changed = [*node[:index], self._change_node(node[index]), *node[index + 1 :]]
                return self.random.choice((changed,) * 5 + (node * 2,))
        word = self.random.choice(self._words)
        return self.random.choice((self.random.choice(ODD_VALUES), [node], {word: node}, word))

    def _change_mapping(self, node: dict[Any, Any]) -> dict[Any, Any]:
        key = self.random.choice(list(node))
        match self.random.randrange(8):
            case 0:
                return {k: v for k, v in node.items() if k != key}
            case 1:
                return {**node, self.random.choice(self._words): node[key]}
            case _:
                return {**node, key: self._change_node(node[key])}

    def _place(self, sample: bytes) -> tuple[int, int]:
        begin = self.random.randrange(len(sample) + 1)
        return begin, min(len(sample), begin + self.random.choice((1, 2, 5, 20, 200)))

    def _cut(self, sample: bytes) -> bytes:
        begin, end = self._place(sample)
        return sample[:begin] + sample[end:]

    def _repeat(self, sample: bytes) -> bytes:
        begin, end = self._place(sample)
        times = self.random.choice((2, 2, 3, 10, 100, 1000))
        return sample[:begin] + sample[begin:end] * times + sample[end:]

    def _insert(self, sample: bytes) -> bytes:
        begin, end = self._place(sample)
        # Half of the words replace what was there.
        return sample[:begin] + self.word() + sample[self.random.choice((begin, end)) :]

    def _flip(self, sample: bytes) -> bytes:
        if not sample:
            return b"\0"
        at = self.random.randrange(len(sample))
        return sample[:at] + bytes([self.random.randrange(256)]) + sample[at + 1 :]

    def _number(self, sample: bytes) -> bytes:
        digits = [i for i, byte in enumerate(sample) if 48 <= byte <= 57]
        if not digits:
            return sample
        at = self.random.choice(digits)
        number = self.random.choice(
            (b"-1", b"0", b"99999999999", b"1e9", b"9" * 30, b"9" * 5000, b"0.1")
        )
        return sample[:at] + number + sample[at + 1 :]

    def _splice(self, one: bytes, other: bytes) -> bytes:
        begin, _ = self._place(one)
        _, end = self._place(other)
        return one[:begin] + other[end:]
