# SPDX-License-Identifier: Apache-2.0
"""A value of an HCL file is replaced, and every other byte stays as it was."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.field_tree import replace_field
from pipecd.config.hcl import _unquote, parse_hcl
from pipecd.model.errors import UserMistake

FILE = """\
# The shop { of "all
module "web" {
  source  = "./web"   // keep
  version = "1.0"
  count   = 3
  /* version = "0" */
  tags    = { Name = "shop", "a.b" : true, other = var.other }
  ports   = [80, upper("x"), "81"]
}

module "db" { version = "1.5" }

resource "instance" "web" {
  image = "shop:v1"
  script = <<-EOT
    image = "shop:v0" }
  EOT
  name   = "${var.p["web"]}-%{if a}b%{endif}"
  rule {
    port = 1
  }
  rule {
    port = 2
  }
}
locals {
  a = "one"
}
locals {
  b = cond ? "x" : "y"
  c = "$${not}"
  nothing = null
}
variable "tag" { default = "v1" }
last = "end"
"""[:-1]


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        pytest.param("$.module.web.version", "2.0", 'version = "1.0"', 'version = "2.0"', id="a block by its label"),
        pytest.param("$.module.db.version", "2.0", '"1.5"', '"2.0"', id="a block in one line"),
        pytest.param("$.module.web.count", "4", "= 3", "= 4", id="a number"),
        pytest.param("$.module.web.tags.Name", "x", '"shop",', '"x",', id="an object"),
        pytest.param("$.module.web.tags['a.b']", "false", ": true", ": false", id="a key in quotes"),
        pytest.param("$.module.web.ports[0]", "90", "[80,", "[90,", id="an item of a list"),
        pytest.param("$.module.web.ports[2]", "90", '"81"', '"90"', id="an item behind something computed"),
        pytest.param("$.resource.instance.web.image", 'a"b\\', '"shop:v1"', '"a\\"b\\\\"', id="a block with two labels"),
        pytest.param("$.resource.instance.web.rule[1].port", "3", "port = 2", "port = 3", id="one of several blocks"),
        pytest.param("$.locals.a", "two", '"one"', '"two"', id="blocks of one name are searched"),
        pytest.param("$.locals.c", "${x}", '"$${not}"', '"$${x}"', id="a value never becomes a template"),
        pytest.param("$.variable.tag.default", "v2", '"v1" }', '"v2" }', id="a variable"),
        pytest.param("$.last", "v2", '"end"', '"v2"', id="no line break is added at the end"),
        pytest.param("$.locals.c", "${not}", "", "", id="an unchanged value"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("line_break", ["\n", "\r\n"], ids=["lines of Unix", "lines of Windows"])
def test_only_the_value_changes(
    path: str, value: str, before: str, after: str, line_break: str
) -> None:
    assert not before or FILE.count(before) == 1
    text = FILE.replace("\n", line_break)
    assert replace_field(text, parse_hcl, path, value) == text.replace(before, after)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        pytest.param("$.module.web.none", "there is no", id="an attribute that is not there"),
        pytest.param("$.module.web", "is an object", id="a block"),
        pytest.param("$.module.web.ports", "is a list", id="a list"),
        pytest.param("$.module.web.ports[1]", "is computed", id="a call"),
        pytest.param("$.module.web.tags.other", "is computed", id="a reference"),
        pytest.param("$.resource.instance.web.name", "is computed", id="a template"),
        pytest.param("$.resource.instance.web.script", "is computed", id="a document"),
        pytest.param("$.locals.b", "is computed", id="a condition"),
        pytest.param("$.locals.nothing", "is null", id="null"),
        pytest.param("$.module.web.count", "is a number, and 'x' is not", id="text for a number"),
    ],
)
def test_a_value_that_cannot_be_replaced_is_an_error(path: str, error: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(error)):
        replace_field(FILE, parse_hcl, path, "x")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param('a = "b', "a string in line 1 does not end", id="quotes"),
        pytest.param('a = "${b"', "does not end", id="a template"),
        pytest.param("\na = f(b", "a bracket in line 2 does not end", id="a bracket"),
        pytest.param("a = [1", "a closing bracket is missing", id="a list"),
        pytest.param("a {\nb = 1", "a closing brace is missing in line 2", id="a block"),
        pytest.param("a = {b 1}", "an equals sign is missing", id="an object"),
        pytest.param("a = <<X\nb", "a heredoc in line 1 does not end", id="a document"),
        pytest.param("a }", "a name is missing", id="no block"),
        pytest.param("}", "the end of the file is missing", id="a brace too many"),
        pytest.param("a {" * 200, "nested", id="blocks too deep to read"),
        pytest.param("a = " + "(" * 2000, "nested", id="brackets too deep to read"),
    ],
)
def test_invalid_hcl_is_an_error(text: str, error: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(error)):
        replace_field(text, parse_hcl, "$.a", "x")


@given(value=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_replaced_value_can_be_read_back(value: str) -> None:
    changed = replace_field('x "y" {\n  a = "old" # c\n}\n', parse_hcl, "$.x.y.a", value)
    start, end = 'x "y" {\n  a = ', " # c\n}\n"
    assert changed.startswith(start) and changed.endswith(end)
    assert _unquote(changed.removeprefix(start).removesuffix(end)) == value
    assert replace_field(changed, parse_hcl, "$.x.y.a", value) == changed
    assert replace_field(changed, parse_hcl, "$.x.y.a", "old") == f'{start}"old"{end}'


@given(text=st.text('ab"{}[]()=\n#/*<$%\\ 1,', max_size=30))
def test_whatever_a_file_contains_there_is_an_answer(text: str) -> None:
    with contextlib.suppress(UserMistake):
        replace_field(text, parse_hcl, "$.a", "b")
