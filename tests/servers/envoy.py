# SPDX-License-Identifier: Apache-2.0
"""Envoy on loopback, with the configuration of a test."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from servers.programs import built_program
from servers.server import Server


class Envoy(Server):
    """Listens on its port with the configuration that `configure` returns."""

    def __init__(self, configure: Callable[[int], dict[str, Any]]) -> None:
        self.configure = configure
        super().__init__()

    def find_program(self) -> str:
        return built_program("envoy")

    def prepare(self) -> None:
        super().prepare()
        text = json.dumps(self.configure(self.port))
        self.directory.joinpath("envoy.json").write_text(text)

    def command(self) -> Sequence[str]:
        options = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
        return [self.program, "-c", f"{self.directory}/envoy.json", *options]

    def is_up(self) -> bool:
        return self.answers()
