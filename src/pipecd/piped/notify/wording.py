# SPDX-License-Identifier: Apache-2.0
"""How a receiver puts letters into words."""

from dataclasses import dataclass

from pipecd.config.piped.notification import TemplateSpec
from pipecd.piped.notify.message import Console, Escape, Message, compose
from pipecd.piped.notify.outbox import Letter
from pipecd.piped.notify.template import reword


@dataclass(frozen=True)
class Wording:
    """The links and templates of one receiver."""

    console: Console
    templates: tuple[TemplateSpec, ...] = ()

    def of(self, letter: Letter, escape: Escape) -> Message:
        """The letter in words; the templates of its route come first."""
        message = compose(letter.notice, self.console, escape)
        return reword(message, letter.notice, (*letter.templates, *self.templates), escape)


def cut(text: str, most: int) -> str:
    """The beginning of a text that would be refused for its length."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
