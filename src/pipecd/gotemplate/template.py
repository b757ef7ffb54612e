# SPDX-License-Identifier: Apache-2.0
"""Go's text/template with the sprig functions, as far as users meet them."""

from typing import Any

from pipecd.gotemplate.builtins import BUILTINS, Functions
from pipecd.gotemplate.evaluate import execute
from pipecd.gotemplate.nodes import TemplateMistake
from pipecd.gotemplate.parser import parse
from pipecd.gotemplate.sprig_collections import COLLECTIONS
from pipecd.gotemplate.sprig_encoding import ENCODING
from pipecd.gotemplate.sprig_scalars import SCALARS
from pipecd.gotemplate.sprig_text import TEXT

FUNCTIONS: Functions = {**TEXT, **SCALARS, **COLLECTIONS, **ENCODING, **BUILTINS}


def render(text: str, data: Any, *, name: str) -> str:
    """Renders a template; `name` is what its mistakes are reported under.

    Data consists of mappings, lists, texts, numbers and booleans. A field that a mapping lacks is
    a mistake, as upstream renders with `missingkey=error`.
    """
    try:
        return execute(parse(text, name=name), FUNCTIONS, data)
    except RecursionError as e:
        raise TemplateMistake(f"template: {name}: it is nested too deeply") from e
