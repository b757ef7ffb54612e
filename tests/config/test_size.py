# SPDX-License-Identifier: Apache-2.0
"""Sizes are parsed and printed as Kubernetes writes them."""

import pytest
from pydantic import TypeAdapter, ValidationError

from pipecd.config.units import Size

SIZE = TypeAdapter(Size)


@pytest.mark.parametrize(
    ("written", "number", "printed"),
    [
        ("512Mi", 512 * 1024**2, "512Mi"),
        ("2Gi", 2 * 1024**3, "2Gi"),
        ("1024Ki", 1024**2, "1Mi"),
        ("1Ti", 1024**4, "1Ti"),
        ("2G", 2 * 10**9, "1953125Ki"),
        ("1001", 1001, "1001"),
        (1001, 1001, "1001"),
        (0, 0, "0"),
    ],
)
def test_a_size_is_read(written: object, number: int, printed: str) -> None:
    size = SIZE.validate_python(written)
    assert (int(size), str(size)) == (number, printed)
    assert SIZE.validate_python(printed) == size


@pytest.mark.parametrize("written", ["", "2 Gi", "2GB", "-1", "1.5Gi", -1, 1.5, True, None])
def test_anything_else_is_refused(written: object) -> None:
    with pytest.raises(ValidationError, match="write it like 512Mi or 2Gi"):
        SIZE.validate_python(written)
