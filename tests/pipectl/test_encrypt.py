# SPDX-License-Identifier: Apache-2.0
"""`pipectl encrypt` binds a secret to an application if it is named and its piped knows how."""

from pathlib import Path
from typing import Any

import pytest

from pipecd.proto.model.piped_pb2 import Piped
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding
from servers.control_plane import StartControlPlane

KNOWS_BOUND = "secretManagement: {forms: [bound, unbound]}"


async def encrypt(
    plane: Any, piped: str, typed: Any, spec_dir: Path, tmp_path: Path, flags: str, config: str
) -> tuple[int, str, str, str]:
    """Encrypts `hunter22`; returns exit code, output, standard error and the application's id."""
    public = (spec_dir / "vectors" / "secret_public.pem").read_text()

    def report(stored: Piped) -> None:
        stored.secret_encryption.type = "KEY_PAIR"
        stored.secret_encryption.public_key, stored.config = public, config

    await plane.running.stores.pipeds.update(piped, report)
    add = f"application add --app-name web --app-kind ECS --piped-id {piped} --platform-provider p"
    _, _, err = await typed(f"{add} --repo-id repo --app-dir apps/web")
    application = err.split("id = ")[1].strip()
    secret = tmp_path / "secret"
    secret.write_text("hunter22")
    line = flags.format(piped=piped, application=application)
    code, out, err = await typed(f"encrypt --input-file {secret} {line}")
    return code, out.strip(), err, application


@pytest.mark.parametrize(
    ("flags", "config", "bound_to"),
    [
        pytest.param("--piped-id {piped}", KNOWS_BOUND, "", id="the flags of upstream"),
        pytest.param("--app-id {application}", KNOWS_BOUND, "apps/web/app.pipecd.yaml", id="an application"),
        pytest.param("--app-id {application} --piped-id {piped}", KNOWS_BOUND, "apps/web/app.pipecd.yaml", id="an application and its piped"),
        pytest.param("--piped-id {piped} --repo-id repo --app-dir apps/new", KNOWS_BOUND, "apps/new/app.pipecd.yaml", id="an application that is not registered yet"),
        pytest.param("--piped-id {piped} --repo-id repo --app-dir ./apps/new/ --config-file-name x.pipecd.yaml", KNOWS_BOUND, "apps/new/x.pipecd.yaml", id="another file"),
        pytest.param("--app-id {application}", "", "", id="a piped that does not know bound secrets"),
    ],
)  # fmt: skip
async def test_a_secret_is_bound_to(
    start_plane: StartControlPlane,
    piped_with_repository: Any,
    typed_at: Any,
    spec_dir: Path,
    tmp_path: Path,
    flags: str,
    config: str,
    bound_to: str,
) -> None:
    async with start_plane() as plane:
        piped = await piped_with_repository(plane)
        code, out, err, _ = await encrypt(
            plane, piped, typed_at(plane), spec_dir, tmp_path, flags, config
        )
    assert code == 0, err
    private = (spec_dir / "vectors" / "secret_private.pem").read_bytes()
    binding = Binding(plane.admin.project, "repo", bound_to) if bound_to else None
    assert hybrid.decrypt(private, out, binding=binding) == "hunter22"
    assert ("the secret is not bound" in err) is (not bound_to and "app-id" in flags)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        pytest.param("", 'required flag(s) "piped-id" not set; or set --app-id', id="neither"),
        pytest.param("--app-id a --repo-id b --app-dir c", "--app-id and --repo-id cannot be set together", id="both"),
        pytest.param("--piped-id {piped} --repo-id b", "--repo-id and --app-dir must be set together", id="no directory"),
        pytest.param("--piped-id {piped} --repo-id b --app-dir c", "piped p has no repository b; use one of: repo", id="an unknown repository"),
        pytest.param("--piped-id x --app-id {application}", "application web belongs to piped ", id="another piped"),
        pytest.param("--app-id x", "failed to get application: rpc error: code = NotFound", id="an unknown application"),
    ],
)  # fmt: skip
async def test_an_error_says_which_flag_is_wrong(
    start_plane: StartControlPlane,
    piped_with_repository: Any,
    typed_at: Any,
    spec_dir: Path,
    tmp_path: Path,
    flags: str,
    error: str,
) -> None:
    async with start_plane() as plane:
        piped = await piped_with_repository(plane)
        code, out, err, _ = await encrypt(
            plane, piped, typed_at(plane), spec_dir, tmp_path, flags, KNOWS_BOUND
        )
    assert (code, out) == (1, "")
    assert error in err
    assert "hunter22" not in err
