# SPDX-License-Identifier: Apache-2.0
"""Numbers and truth values as JSON and HCL spell them."""

import re
from collections.abc import Iterator

from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.replace.tree import Leaf, Splice

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def literal(word: str, start: int, end: int) -> Leaf:
    """A number or truth value at a place, which only another one of its type can replace."""
    is_truth = word in ("true", "false")

    def write(new: str) -> Iterator[Splice]:
        fits = new in ("true", "false") if is_truth else _NUMBER.fullmatch(new)
        if not fits:
            type_ = "true or false" if is_truth else "a number"
            raise UserMistake(
                f"the value there is {type_}, and {new!r} is not",
                hint="put the value in the file in quotes first",
            )
        yield Splice(start, end, new)

    return Leaf(word, write)
