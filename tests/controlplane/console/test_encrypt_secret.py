# SPDX-License-Identifier: Apache-2.0
"""The page that encrypts a secret for an application."""

import re
from pathlib import Path

import httpx2
import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding
from servers.console import OpenBrowser, SubmitForm

SECRET = "hunter22\nand <co>"


@pytest.fixture
def path(application: Application) -> str:
    return f"/applications/{application.id}/encrypt"


async def report(cases: UseCases, piped: PipedCaller, spec_dir: Path, config: str) -> None:
    public = (spec_dir / "vectors" / "secret_public.pem").read_text()
    encryption = Piped.SecretEncryption(type="KEY_PAIR", public_key=public)
    meta = ReportPipedMetaRequest(secret_encryption=encryption, config=config)
    await cases.pipeds.report_meta(meta, by=piped)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        pytest.param("secretManagement: {forms: [bound]}", "It decrypts only in", id="bound"),
        pytest.param("{}", "Every application of the piped can decrypt it", id="not bound"),
    ],
)
async def test_a_secret_is_encrypted_for_the_application(
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
    admin_browser: httpx2.AsyncClient,
    submit_form: SubmitForm,
    spec_dir: Path,
    config: str,
    text: str,
) -> None:
    await report(cases, piped, spec_dir, config)
    path = f"/applications/{application.id}/encrypt"
    assert "lacks-key" not in (await admin_browser.get(path)).text
    assert f'href="{path}"' in (await admin_browser.get(f"/applications/{application.id}")).text
    page = await submit_form(admin_browser, path, path, secret=SECRET.replace("\n", "\r\n"))
    assert page.status_code == 200
    assert text in page.text
    assert page.headers["Cache-Control"] == "no-store"
    assert "hunter22" not in page.text, "the secret is not shown again"
    [encrypted] = re.findall('data-testid="ciphertext">([^<]+)<', page.text)
    private = (spec_dir / "vectors" / "secret_private.pem").read_bytes()
    binding = Binding.of_application(application)
    assert hybrid.decrypt(private, encrypted, binding=binding) == SECRET


async def test_a_rejected_form_says_why_and_does_not_show_the_secret(
    admin_browser: httpx2.AsyncClient, submit_form: SubmitForm, path: str
) -> None:
    # The page says so before anyone types a secret.
    form = (await admin_browser.get(path)).text
    assert 'data-testid="lacks-key"' in form
    assert 'data-testid="encrypt-button" disabled' in form
    page = await submit_form(admin_browser, path, path, secret=SECRET)
    assert page.status_code == 422
    assert "has no public key to encrypt with" in page.text
    assert "hunter22" not in page.text


async def test_users_who_may_not_update_the_application_get_no_form(
    open_browser: OpenBrowser, viewer: User, submit_form: SubmitForm, path: str
) -> None:
    browser = open_browser(viewer)
    page = (await browser.get(path)).text
    assert "does not allow this" in page
    assert "<textarea" not in page
    assert (await submit_form(browser, path, path, secret=SECRET)).status_code == 403
