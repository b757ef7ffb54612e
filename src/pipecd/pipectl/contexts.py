# SPDX-License-Identifier: Apache-2.0
"""The control planes that a user has logged in to; a file in the home directory keeps them."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pipecd.model.errors import NotFound, PipecdError, UserMistake
from pipecd.program.atomic_write import write_private

FILE_VARIABLE = "PIPECTL_CONFIG"


@dataclass(frozen=True)
class Context:
    """How one control plane is reached."""

    address: str
    api_key: str = field(repr=False)
    insecure: bool = False
    cert_file: str = ""


@dataclass(frozen=True)
class Contexts:
    """All contexts by name, and the one that commands use by default."""

    by_name: Mapping[str, Context] = field(default_factory=dict[str, Context])
    current: str = ""

    def get(self, name: str) -> Context:
        if name not in self.by_name:
            raise NotFound(f"there is no context {name}", hint=self._others())
        return self.by_name[name]

    def with_context(self, name: str, context: Context) -> "Contexts":
        """Adds or replaces a context, which becomes the current one."""
        return Contexts({**self.by_name, name: context}, name)

    def using(self, name: str) -> "Contexts":
        self.get(name)
        return replace(self, current=name)

    def without(self, name: str) -> "Contexts":
        self.get(name)
        others = {each: context for each, context in self.by_name.items() if each != name}
        return Contexts(others, "" if self.current == name else self.current)

    def _others(self) -> str:
        names = ", ".join(self.by_name)
        return f"use one of: {names}" if names else "make one with `pipectl login`"


def contexts_file() -> Path:
    if path := os.environ.get(FILE_VARIABLE, ""):
        return Path(path)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "pipectl" / "contexts.json"


def load_contexts() -> Contexts:
    """Reads the contexts; there are none before the first login."""
    path = contexts_file()
    try:
        stored = json.loads(path.read_bytes())
        contexts = {name: Context(**fields) for name, fields in stored["contexts"].items()}
        return Contexts(contexts, str(stored["current"]))
    except FileNotFoundError:
        return Contexts()
    except OSError as e:
        raise UserMistake(f"cannot read the contexts {path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UserMistake(
            f"the file of contexts {path} is damaged", hint="delete it and log in again"
        ) from e


def save_contexts(contexts: Contexts) -> None:
    """Stores the contexts so that only their owner can read them."""
    path = contexts_file()
    document = {
        "current": contexts.current,
        "contexts": {name: asdict(context) for name, context in contexts.by_name.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, json.dumps(document, indent=2).encode())
    except OSError as e:
        raise UserMistake(f"cannot write the contexts {path}: {e.strerror}") from e


def complete_context(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
    """Completes the name of a context in the shell."""
    try:
        known = load_contexts().by_name
    except PipecdError:
        return []
    return [
        CompletionItem(name, help=context.address)
        for name, context in known.items()
        if name.startswith(incomplete)
    ]
