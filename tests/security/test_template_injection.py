# SPDX-License-Identifier: Apache-2.0
"""Templates of a branch cannot hang piped, fill its memory or its disk, or read its environment."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

import pytest

from pipecd.config.application import AttachmentSpec
from pipecd.model.errors import UserMistake
from pipecd.piped.source.render import TemplateRenderer, render_files
from pipecd.program.broken_inputs import BrokenInputs
from pipecd.program.workers import WorkerLimits, WorkerPool

MEBIBYTE = 1024**2
SECRET = "hunter2-of-piped"

TIME, MEMORY, OUTPUT = "the time limit", "the memory limit", "the output limit"


class Attack(NamedTuple):
    """A template that costs too much; one of the limits is in the error."""

    template: str
    limits: tuple[str, ...] = (TIME, MEMORY)


ATTACKS_BOMBS: dict[str, Attack] = {
    "a range over a number": Attack("{{ range 1000000000000 }}{{ end }}", (TIME,)),
    "ranges within ranges": Attack(
        "{{ range until 900000 }}{{ range until 900000 }}{{ end }}{{ end }}"
    ),
    "a range that prints": Attack("{{ range 100000000 }}0123456789{{ end }}"),
    "a chain of replace that doubles": Attack(
        '{{ $x := "aaaaaaaa" }}{{ range until 60 }}{{ $x = replace "a" "aa" $x }}{{ end }}{{ len $x }}'
    ),
    "a chain of printf that doubles": Attack(
        '{{ $x := "aaaaaaaa" }}{{ range until 60 }}{{ $x = printf "%s%s" $x $x }}{{ end }}{{ len $x }}'
    ),
    "a chain of concat that doubles": Attack(
        "{{ $x := list 1 2 3 4 }}{{ range until 60 }}{{ $x = concat $x $x }}{{ end }}{{ len $x }}"
    ),
    "templates that call each other twice": Attack(
        "".join(
            f'{{{{ define "t{n}" }}}}{{{{ template "t{n + 1}" }}}}{{{{ template "t{n + 1}" }}}}{{{{ end }}}}'
            for n in range(90)
        )
        + '{{ define "t90" }}{{ end }}{{ template "t0" }}',
        (TIME,),
    ),
    "an indentation of many lines": Attack('{{ repeat 1000000 "\\n" | indent 10000 }}', (MEMORY,)),
    "a text split into characters": Attack('{{ split "" (repeat 9999999 "a") | len }}'),
    "duplicates of a long list": Attack("{{ uniq (until 200000) | len }}", (TIME,)),
    "digests of digests": Attack(
        '{{ $x := repeat 9000000 "a" }}{{ range until 100000 }}{{ $_ := sha512sum $x }}{{ end }}',
        (TIME,),
    ),
    "random characters without end": Attack(
        "{{ range until 100000 }}{{ $_ := randAlphaNum 1000000 }}{{ end }}", (TIME,)
    ),
    "words of a long text": Attack('{{ repeat 4999999 "a " | wrap 1 | len }}'),
    "a result that does not fit": Attack('{{ repeat 9000000 "a" }}', (OUTPUT,)),
    "a text repeated many times": Attack(
        '{{ $x := repeat 9999999 "a" }}{{ range until 900 }}{{ $x }}{{ end }}', (MEMORY,)
    ),
}


@pytest.fixture(scope="module")
async def limited(anyio_backend: str) -> AsyncGenerator[WorkerPool]:
    limits = WorkerLimits(seconds=0.7, memory=200 * MEBIBYTE, output=MEBIBYTE)
    async with WorkerPool(limits, size=1) as pool:
        yield pool


async def rendered(directory: Path, template: str, renderer: TemplateRenderer) -> str:
    """Renders a file of a working copy as piped does before it deploys or previews."""
    (directory / "target").write_text(template)
    (directory / "source").write_text("attached")
    spec = AttachmentSpec(sources={"source": "source"}, targets=("target",))
    await render_files(
        directory, directory, renderer, encryption=None, attachment=spec, decrypt=None
    )
    return (directory / "target").read_text()


@pytest.mark.parametrize("attack", ATTACKS_BOMBS.values(), ids=ATTACKS_BOMBS)
async def test_a_bomb_costs_a_worker_and_names_the_limit(
    attack: Attack, limited: WorkerPool, tmp_path: Path
) -> None:
    with pytest.raises(UserMistake, match="failed to render target file target") as e:
        await rendered(tmp_path, attack.template, TemplateRenderer(limited))
    assert any(limit in str(e.value) for limit in attack.limits)
    assert str(e.value).endswith("; simplify it")
    # The file is left as it is.
    assert (tmp_path / "target").read_text() == attack.template


ATTACKS_ON_GO_RULES: dict[str, tuple[str, str]] = {
    "a width from an argument": ('{{ printf "%*d" 2000000000 7 }}', "%!(BADWIDTH)7"),
    "a negative width from an argument": ('{{ printf "%*d" -2000000000 7 }}', "%!(BADWIDTH)7"),
    "a precision from an argument": ('{{ printf "%.*f" 2000000000 1.5 }}', "%!(BADPREC)1.500000"),
    "squares of squares": (
        "{{ $x := 7 }}{{ range until 60 }}{{ $x = mul $x $x }}{{ end }}{{ $x }}",
        "-9223372036854775807",
    ),
    "an expression that backtracks": ('{{ regexMatch "^(a+)+b" (repeat 60 "a") }}', "false"),
    "an expression that backtracks while it searches": (
        '{{ regexFindAll "(x+x+)+y" (repeat 60 "x") -1 | len }}',
        "0",
    ),
    "an expression that backtracks while it replaces": (
        '{{ regexReplaceAll "(.*)*=" (repeat 60 "x") "$1$1" | len }}',
        "60",
    ),
    "variables of piped": (
        '{{ env "PIPECD_TEST_SECRET" }}{{ expandenv "$PIPECD_TEST_SECRET" }}',
        "",
    ),
}


@pytest.mark.parametrize(
    ("template", "expected"), ATTACKS_ON_GO_RULES.values(), ids=ATTACKS_ON_GO_RULES
)
async def test_a_template_gains_no_more_than_with_go(
    template: str,
    expected: str,
    workers: WorkerPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIPECD_TEST_SECRET", SECRET)
    assert await rendered(tmp_path, template, TemplateRenderer(workers)) == expected


async def test_a_plain_template_is_rendered_beside_a_bomb(
    limited: WorkerPool, workers: WorkerPool, tmp_path: Path
) -> None:
    with pytest.raises(UserMistake):
        await rendered(tmp_path, "{{ range 1000000000001 }}{{ end }}", TemplateRenderer(limited))
    renderer = TemplateRenderer(workers, {"REGION": "eu"})
    template = '{{ .attachment.source | upper }} {{ env "REGION" }} \u00e9'
    assert await rendered(tmp_path, template, renderer) == "ATTACHED eu \u00e9"


async def test_a_bomb_is_not_tried_again_after_a_restart(tmp_path: Path) -> None:
    limits, stored = WorkerLimits(seconds=0.3), list[bytes]()
    bomb = "{{ range 1000000000002 }}{{ end }}"
    async with WorkerPool(limits, broken=BrokenInputs(save=stored.append)) as pool:
        with pytest.raises(UserMistake, match=TIME):
            await rendered(tmp_path, bomb, TemplateRenderer(pool))
    after_restart = WorkerPool(limits, broken=BrokenInputs(BrokenInputs.parse(stored[-1])))
    async with after_restart as pool:
        with pytest.raises(UserMistake, match="tried again after a day"):
            await rendered(tmp_path, bomb, TemplateRenderer(pool))
        # Other content is evaluated.
        assert await rendered(tmp_path, '{{ print "x" }}', TemplateRenderer(pool)) == "x"
