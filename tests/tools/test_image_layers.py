# SPDX-License-Identifier: Apache-2.0
"""The layers of images, without packages of Debian."""

import importlib
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
# The head of a program for arm64: ELF, 64 bits, little-endian, EM_AARCH64.
ARM64_PROGRAM = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(44)


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("images")


def test_images_share_a_layer_only_if_they_have_the_same_wheels(images: Any) -> None:
    server = [Path("/a/boto3-1.0-py3-none-any.whl"), Path("/a/click-8.0-py3-none-any.whl")]
    piped = [Path("/a/boto3-1.0-py3-none-any.whl"), Path("/a/kubernetes-1.0-py3-none-any.whl")]
    assert images.packages_layer_name(server) != images.packages_layer_name(piped)
    assert images.packages_layer_name(server) == images.packages_layer_name(server[::-1])


def test_a_program_of_another_architecture_is_an_error_with_remedies(
    images: Any, tmp_path: Path
) -> None:
    program = tmp_path / "ld-linux-aarch64.so.1"
    program.write_bytes(ARM64_PROGRAM)
    program.chmod(0o755)
    with pytest.raises(SystemExit, match=r"images for aarch64 cannot run .* qemu-user-static"):
        images.run_of_image([str(program)], {}, "aarch64")
