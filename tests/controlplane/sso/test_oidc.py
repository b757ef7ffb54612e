# SPDX-License-Identifier: Apache-2.0
"""Sign-in with OpenID Connect, over real HTTP and with real signatures."""

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pipecd.controlplane.auth.subject import User
from pipecd.model.clock import to_unix
from pipecd.proto.model.project_pb2 import ProjectSSOConfig

Fixture = Callable[..., Any]
SignedIn = Callable[[Any], Awaitable[User]]
ErrorMessage = Callable[[Any], str]


async def test_a_user_gets_the_roles_of_the_claims(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
) -> None:
    await configure_sso(oidc_config())
    oidc.claims |= {"roles": ["Editor", "Cook"], "picture": "https://p.example/o"}
    answer = await sign_in_with_oidc()
    assert answer.headers["location"] == "/"
    assert await signed_in(answer) == User("shop", "olga", ("Editor",), "https://p.example/o")
    assert oidc.logins == ["basic"]


async def test_the_authorization_url(
    oidc: Any, configure_sso: Fixture, oidc_config: Fixture, begin_sign_in: Fixture
) -> None:
    await configure_sso(oidc_config())
    url, query = await begin_sign_in()
    assert url.startswith(f"{oidc.issuer}/authorize?")
    assert query.pop("state").endswith(":shop")
    assert len(query.pop("nonce")) == 64
    assert len(query.pop("code_challenge")) == 43
    assert query == {
        "access_type": "online",
        "code_challenge_method": "S256",
        "client_id": "client",
        "prompt": "consent",
        "redirect_uri": "https://pipecd.example/auth/callback",
        "response_type": "code",
        "scope": "openid",
    }


async def test_every_setting_of_the_configuration_is_used(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    begin_sign_in: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
) -> None:
    await configure_sso(
        oidc_config(
            redirect_uri="https://cd.example/auth/callback",
            authorization_endpoint=f"{oidc.issuer}/authorize?tenant=a",
            token_endpoint=f"{oidc.issuer}/token",
            user_info_endpoint=f"{oidc.issuer}/userinfo",
            scopes=["openid", "profile", "groups"],
            roles_claim_key="pipecd",
            username_claim_key="email",
            avatar_url_claim_key="face",
        )
    )
    oidc.discovery = {
        "authorization_endpoint": "http://127.0.0.1:1/",
        "token_endpoint": "http://127.0.0.1:1/",
    }
    oidc.user_info = {"email": "o@x.example", "face": "https://f.example", "pipecd": "Viewer"}
    url, query = await begin_sign_in()
    assert url.startswith(f"{oidc.issuer}/authorize?tenant=a&access_type")
    assert query["redirect_uri"] == "https://cd.example/auth/callback"
    assert query["scope"] == "openid profile groups"
    user = await signed_in(await sign_in_with_oidc())
    assert user == User("shop", "o@x.example", ("Viewer",), "https://f.example")


async def test_user_info_overrides_the_id_token(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
) -> None:
    await configure_sso(oidc_config())
    oidc.user_info = {"roles": ["Admin"], "groups": ["Viewer"]}
    assert (await signed_in(await sign_in_with_oidc())).roles == ("Viewer", "Admin")


async def test_a_provider_that_accepts_the_secret_only_in_the_form(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
) -> None:
    await configure_sso(oidc_config())
    oidc.discovery = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    assert (await signed_in(await sign_in_with_oidc())).name == "olga"
    assert oidc.logins == ["post"]


async def test_a_token_without_a_kid_is_verified_with_the_only_key(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
) -> None:
    await configure_sso(oidc_config())
    oidc.kid = None
    assert (await signed_in(await sign_in_with_oidc())).name == "olga"


@pytest.mark.parametrize(
    ("token_overrides", "reason"),
    [
        pytest.param({"iss": "https://evil.example"}, "Invalid issuer", id="from another issuer"),
        pytest.param({"aud": "other"}, "Audience", id="for another client"),
        pytest.param(
            {"aud": ["client", "other"], "azp": "other"},
            "issued to another client",
            id="issued to another client",
        ),
        pytest.param({"nonce": "f" * 64}, "belongs to another sign-in", id="of another sign-in"),
        pytest.param({"nonce": None}, "belongs to another sign-in", id="without a nonce"),
        pytest.param({"exp": -100}, "has expired", id="that has expired"),
        pytest.param({"iat": 300}, "not valid yet", id="from the future"),
        pytest.param({"nbf": 300}, "not valid yet", id="that is not valid yet"),
        pytest.param({"exp": None}, 'missing the "exp" claim', id="without an expiry"),
        pytest.param({"sub": None}, 'missing the "sub" claim', id="without a subject"),
        pytest.param({"exp": "soon"}, "is not a number", id="with a time that is not a number"),
    ],
)
async def test_an_id_token_is_rejected(
    *,
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    error_message: ErrorMessage,
    token_overrides: dict[str, Any],
    reason: str,
) -> None:
    await configure_sso(oidc_config())
    start = to_unix(oidc.now)
    oidc.token_overrides = {
        name: start + value if isinstance(value, int) else value
        for name, value in token_overrides.items()
    }
    message = error_message(await sign_in_with_oidc())
    assert message.startswith("Unable to find user: ")
    assert reason.replace('"', "") in message


async def test_a_small_clock_skew_is_tolerated(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
) -> None:
    await configure_sso(oidc_config())
    oidc.token_overrides = {"iat": to_unix(oidc.now) + 30, "exp": to_unix(oidc.now) - 30}
    assert (await signed_in(await sign_in_with_oidc())).name == "olga"


def signed(key: Any, algorithm: str, kid: str | None = "key-1") -> Callable[[dict[str, Any]], str]:
    headers = {"kid": kid} if kid else {}
    return lambda claims: jwt.encode(claims, key, algorithm, headers=headers)


def sign_with_hmac(secret: bytes) -> Callable[[dict[str, Any]], str]:
    """Signs with a shared secret, also one that the library refuses to use."""

    def sign(claims: dict[str, Any]) -> str:
        parts = ({"alg": "HS256", "kid": "key-1"}, claims)
        text = b".".join(
            urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts
        )
        signature = urlsafe_b64encode(hmac.digest(secret, text, "sha256")).rstrip(b"=")
        return (text + b"." + signature).decode()

    return sign


async def test_only_a_signature_of_the_provider_is_accepted(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    error_message: ErrorMessage,
    rsa_keys: Any,
) -> None:
    await configure_sso(oidc_config())
    ours, theirs = rsa_keys
    public = ours.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for forge in (
        signed(theirs, "RS256"),
        signed(theirs, "RS256", None),
        signed(ours, "RS256", "another key"),
        signed(ours, "RS512"),
        signed(ec.generate_private_key(ec.SECP256R1()), "ES256"),
        signed(None, "none"),
        sign_with_hmac(b"s:ecret%"),
        # The public key as the shared secret, a known attack.
        sign_with_hmac(public),
        lambda claims: "not.a.token",
        lambda claims: "",
    ):
        oidc.forge = forge
        message = error_message(await sign_in_with_oidc())
        assert message.startswith("Unable to find user: the ID token of the provider is not valid")
    oidc.forge = signed(ours, "RS256")
    assert (await sign_in_with_oidc()).status_code == 302


DISCOVERY, KEYS = "/.well-known/openid-configuration", "/keys"


@pytest.mark.parametrize(
    ("cache_control", "seconds"),
    [
        pytest.param("", 5 * 60, id="five minutes if the provider does not say"),
        pytest.param("public, max-age=30", 30, id="as long as max-age says"),
        pytest.param("max-age=99999999", 60 * 60, id="an hour at most"),
        pytest.param("max-age=0", 0, id="not at all if max-age is 0"),
    ],
)
async def test_discovery_document_and_keys_are_cached(
    *,
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
    advance: Callable[[float], None],
    cache_control: str,
    seconds: int,
) -> None:
    await configure_sso(oidc_config())
    oidc.cache_control = cache_control
    for _ in range(3):
        assert (await signed_in(await sign_in_with_oidc())).name == "olga"
    # A sign-in reads the discovery document twice and the keys once.
    assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (
        (1, 1) if seconds else (6, 3)
    )
    if seconds:
        oidc.requests.clear()
        advance(seconds - 1)
        await sign_in_with_oidc()
        assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (0, 0)
        advance(1)
        await sign_in_with_oidc()
        assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (1, 1)


@pytest.mark.parametrize(
    "kid",
    [
        pytest.param("key-2", id="with another kid"),
        pytest.param(None, id="that tokens do not name"),
    ],
)
async def test_a_rotated_key_is_fetched_at_once(
    *,
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
    rsa_keys: Any,
    kid: str | None,
) -> None:
    await configure_sso(oidc_config())
    await sign_in_with_oidc()
    oidc.key, oidc.kid = rsa_keys[1], kid
    for _ in range(2):
        assert (await signed_in(await sign_in_with_oidc())).name == "olga"
    assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (1, 2)


async def test_a_token_of_an_unknown_key_fetches_the_keys_once(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    error_message: ErrorMessage,
    rsa_keys: Any,
) -> None:
    await configure_sso(oidc_config())
    await sign_in_with_oidc()
    oidc.forge = signed(rsa_keys[1], "RS256", "another key")
    assert "not one that the provider publishes" in error_message(await sign_in_with_oidc())
    assert oidc.requests_for(KEYS) == 2


async def test_providers_behind_different_proxies_share_no_cache(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
) -> None:
    await configure_sso(oidc_config())
    assert (await signed_in(await sign_in_with_oidc())).name == "olga"
    await configure_sso(oidc_config(proxy_url=oidc.issuer))
    assert (await signed_in(await sign_in_with_oidc())).name == "olga"
    assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (2, 2)


async def test_user_info_of_another_user_is_rejected(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    error_message: ErrorMessage,
) -> None:
    await configure_sso(oidc_config())
    oidc.user_info = {"sub": "sub-2", "roles": ["Admin"]}
    assert "belongs to another user" in error_message(await sign_in_with_oidc())


@pytest.mark.parametrize(
    ("claims", "roles"),
    [
        pytest.param({"roles": ["Admin", "Viewer"]}, ("Admin", "Viewer"), id="a list"),
        pytest.param({"roles": "Admin"}, ("Admin",), id="a single string"),
        pytest.param(
            {"groups": ["Viewer"], "custom:roles": ["Editor"], "cognito:groups": ["Viewer"]},
            ("Viewer", "Editor"),
            id="several claims together",
        ),
        pytest.param(
            {"roles": ["admin", 7, None, "Editor"]}, ("Editor",), id="values that are not roles"
        ),
    ],
)
async def test_roles_come_from(
    *,
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
    claims: dict[str, Any],
    roles: tuple[str, ...],
) -> None:
    await configure_sso(oidc_config())
    oidc.claims = {"name": "olga", **claims}
    assert (await signed_in(await sign_in_with_oidc())).roles == roles


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        pytest.param({}, "no role found in claims", id="no claim with roles"),
        pytest.param({"roles": []}, "no role found in claims", id="an empty list"),
        pytest.param(
            {"roles": ["cooks", "admin"]}, "name none of the roles Admin", id="no known role"
        ),
    ],
)
async def test_a_user_without_a_role_is_rejected_unless_strays_are_viewers(
    *,
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
    error_message: ErrorMessage,
    claims: dict[str, Any],
    reason: str,
) -> None:
    await configure_sso(oidc_config())
    oidc.claims = {"name": "stray", **claims}
    message = error_message(await sign_in_with_oidc())
    assert message.startswith("Unable to find user: ")
    assert reason in message
    assert "ask an administrator of project shop" in message
    await configure_sso(allow_stray_as_viewer=True)
    assert (await signed_in(await sign_in_with_oidc())).roles == ("Viewer",)


async def test_a_user_without_a_name_is_rejected(
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    error_message: ErrorMessage,
) -> None:
    await configure_sso(oidc_config())
    oidc.claims = {"roles": ["Admin"], "name": "", "username": 7}
    assert "contains your user name" in error_message(await sign_in_with_oidc())


@pytest.mark.parametrize(
    ("discovery", "reason"),
    [
        pytest.param({"issuer": "https://other.example"}, "calls itself", id="another issuer"),
        pytest.param(
            {"authorization_endpoint": ""}, "authorization_endpoint", id="no authorization endpoint"
        ),
        pytest.param({"jwks_uri": ""}, "jwks_uri", id="no keys"),
        pytest.param(
            {"authorization_endpoint": "javascript:alert(1)"},
            "authorization_endpoint",
            id="an authorization endpoint that is not an HTTP URL",
        ),
    ],
)
async def test_an_invalid_discovery_document_is_rejected(
    *,
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    browser: Any,
    error_message: ErrorMessage,
    discovery: dict[str, Any],
    reason: str,
) -> None:
    await configure_sso(oidc_config())
    oidc.discovery = discovery
    message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
    assert message.startswith("Internal error: ")
    assert reason in message


async def test_an_unreachable_provider_is_named(
    configure_sso: Fixture, browser: Any, error_message: ErrorMessage
) -> None:
    config = ProjectSSOConfig(
        provider=ProjectSSOConfig.OIDC,
        oidc=ProjectSSOConfig.Oidc(
            client_id="client", client_secret="secret", issuer="http://127.0.0.1:1"
        ),
    )
    await configure_sso(config)
    message = error_message(await browser.post("/auth/login", data={"project": "shop"}))
    assert message.startswith("Internal error: cannot reach 127.0.0.1:1")


async def test_a_wrong_client_secret_is_reported_with_the_reason_of_the_provider(
    configure_sso: Fixture,
    oidc_config: Fixture,
    sign_in_with_oidc: Fixture,
    error_message: ErrorMessage,
) -> None:
    await configure_sso(oidc_config(client_secret="wrong"))
    message = error_message(await sign_in_with_oidc())
    assert message == "Unable to find user: the provider refused the sign-in: invalid_client"


async def test_all_requests_go_through_the_proxy(
    *,
    oidc: Any,
    configure_sso: Fixture,
    oidc_config: Fixture,
    shared: dict[str, ProjectSSOConfig],
    sign_in_with_oidc: Fixture,
    signed_in: SignedIn,
) -> None:
    # A request through a proxy has an absolute URL, so the test server sees the host.
    shared["idp"] = oidc_config(issuer="http://idp.invalid", proxy_url=oidc.issuer)
    await configure_sso(shared_sso_name="idp")
    proxy, oidc.issuer = oidc.issuer, "http://idp.invalid"
    oidc.discovery = {"authorization_endpoint": f"{proxy}/authorize"}
    assert (await signed_in(await sign_in_with_oidc())).name == "olga"
    hosts = {
        request.headers["host"] for request in oidc.requests if request.url.path != "/authorize"
    }
    assert hosts == {"idp.invalid"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"proxy_url": "nonsense://x"}, "invalid proxy_url", id="an invalid proxy"),
        pytest.param({"issuer": "http://[::"}, "is not a URL", id="an invalid issuer"),
    ],
)
async def test_an_invalid_setting_is_reported(
    *,
    configure_sso: Fixture,
    oidc_config: Fixture,
    browser: Any,
    error_message: ErrorMessage,
    shared: dict[str, ProjectSSOConfig],
    fields: dict[str, str],
    reason: str,
) -> None:
    shared["idp"] = oidc_config(**fields)
    await configure_sso(shared_sso_name="idp")
    assert reason in error_message(await browser.post("/auth/login", data={"project": "shop"}))
