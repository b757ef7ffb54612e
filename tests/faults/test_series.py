# SPDX-License-Identifier: Apache-2.0
"""The resources of programs over time are recorded, summed up, and drawn."""

from pathlib import Path
from xml.etree import ElementTree

from faults.evidence import Resources
from faults.series import ResourceSeries, Sample, draw


def series(*megabytes: int) -> ResourceSeries:
    samples = [
        Sample(5.0 * number, "piped", Resources(1, each << 20, 9, 30))
        for number, each in enumerate(megabytes)
    ]
    return ResourceSeries(dict, samples=samples)


def test_growth_compares_the_second_quarter_with_the_last() -> None:
    flat = series(50, 90, 100, 100, 101, 100, 100, 100)
    leaking = series(50, 90, 100, 120, 140, 160, 180, 200)
    assert flat.growth("memory") == {"piped": (100.0, 100.0)}
    assert leaking.growth("memory") == {"piped": (120.0, 200.0)}


def test_figures_and_pictures_are_written(tmp_path: Path) -> None:
    written = series(100, 110).save(tmp_path, "sqlite")
    assert [file.name for file in written] == [
        "sqlite.json",
        "sqlite-memory.svg",
        "sqlite-threads.svg",
        "sqlite-files.svg",
    ]


def test_a_picture_has_a_line_per_program_and_nothing_unescaped() -> None:
    picture = draw("Memory <of> all", "MB", {"a": [(0, 1), (1, 2)], "b": [(0, 3), (1, 3)]})
    root = ElementTree.fromstring(picture)
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]
    assert "Memory &lt;of&gt; all" in picture
