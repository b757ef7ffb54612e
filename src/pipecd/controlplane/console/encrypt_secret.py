# SPDX-License-Identifier: Apache-2.0
"""The page that encrypts a secret for an application."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.console.page_context import BrowserSession, FormError, PageContext
from pipecd.secrets.encrypter import EncryptedSecret, has_encryption_key

_PATH = "/applications/{id}/encrypt"
_FORM = "encrypt"
_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)


class EncryptSecretPages:
    """Routes and handlers of the page that encrypts a secret."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        encrypt = self._context.validated_action(_FORM, self.encrypt, self._show)
        return [
            Route(_PATH, self._context.page(self.show_page), methods=["GET"]),
            Route(_PATH, encrypt, methods=["POST"]),
        ]

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        return await self._show(request, session)

    async def encrypt(self, request: Request, session: BrowserSession) -> Response:
        form = await request.form()
        encrypted = await self._context.cases.encryption.encrypt_for_application(
            request.path_params["id"],
            # Browsers send the line breaks of a form as CR LF.
            str(form.get("secret", "")).replace("\r\n", "\n"),
            base64_encoding="base64" in form,
            by=session.user,
        )
        return await self._show(request, session, encrypted=encrypted)

    async def _show(
        self,
        request: Request,
        session: BrowserSession,
        error: FormError | None = None,
        *,
        encrypted: EncryptedSecret | None = None,
    ) -> Response:
        cases, user = self._context.cases, session.user
        application = await cases.applications.get(request.path_params["id"], by=user)
        pipeds = await self._context.visible_pipeds(user) or ()
        piped = next((piped for piped in pipeds if piped.id == application.piped_id), None)
        return self._context.render(
            request,
            "encrypt_secret.html",
            status=422 if error else 200,
            application=application,
            encrypted=encrypted,
            piped=piped,
            lacks_key=piped is not None and not has_encryption_key(piped),
            error=error,
            disabled_reason=await self._context.denied_reason(user, _UPDATE, application),
        )
