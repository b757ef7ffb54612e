# SPDX-License-Identifier: Apache-2.0
"""Sign-in with a provider of OpenID Connect, over real HTTP and with real signatures."""

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

Way = Callable[..., Any]
SignedIn = Callable[[Any], Awaitable[User]]
Refusal = Callable[[Any], str]


async def test_somebody_comes_in_with_the_roles_of_their_claims(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, signed_in: SignedIn
) -> None:
    await trust(by_oidc())
    oidc.claims |= {"roles": ["Editor", "Cook"], "picture": "https://p.example/o"}
    answer = await through_oidc()
    assert answer.headers["location"] == "/"
    assert await signed_in(answer) == User("shop", "olga", ("Editor",), "https://p.example/o")
    assert oidc.logins == ["basic"]


async def test_what_the_provider_is_asked(oidc: Any, trust: Way, by_oidc: Way, leave: Way) -> None:
    await trust(by_oidc())
    url, asked = await leave()
    assert url.startswith(f"{oidc.issuer}/authorize?")
    state, _, project = asked.pop("state").partition(":")
    assert (bytes.fromhex(state).decode().count(":"), project) == (1, "shop")
    assert len(asked.pop("nonce")) == 64
    assert asked == {
        "access_type": "online",
        "client_id": "client",
        "prompt": "consent",
        "redirect_uri": "https://pipecd.example/auth/callback",
        "response_type": "code",
        "scope": "openid",
    }


async def test_every_setting_of_the_provider_is_obeyed(
    oidc: Any,
    trust: Way,
    by_oidc: Way,
    leave: Way,
    through_oidc: Way,
    signed_in: SignedIn,
) -> None:
    await trust(
        by_oidc(
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
    url, asked = await leave()
    assert url.startswith(f"{oidc.issuer}/authorize?tenant=a&access_type")
    assert asked["redirect_uri"] == "https://cd.example/auth/callback"
    assert asked["scope"] == "openid profile groups"
    person = await signed_in(await through_oidc())
    assert person == User("shop", "o@x.example", ("Viewer",), "https://f.example")


async def test_what_the_user_info_says_counts_more(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, signed_in: SignedIn
) -> None:
    await trust(by_oidc())
    oidc.user_info = {"roles": ["Admin"], "groups": ["Viewer"]}
    assert (await signed_in(await through_oidc())).roles == ("Viewer", "Admin")


async def test_a_provider_that_takes_the_secret_only_in_the_form(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, signed_in: SignedIn
) -> None:
    await trust(by_oidc())
    oidc.discovery = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    assert (await signed_in(await through_oidc())).name == "olga"
    assert oidc.logins == ["post"]


async def test_a_token_that_names_no_key_is_checked_with_the_only_one(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, signed_in: SignedIn
) -> None:
    await trust(by_oidc())
    oidc.kid = None
    assert (await signed_in(await through_oidc())).name == "olga"


@pytest.mark.parametrize(
    ("bent", "why"),
    [
        pytest.param({"iss": "https://evil.example"}, "Invalid issuer", id="from another issuer"),
        pytest.param({"aud": "other"}, "Audience", id="for another program"),
        pytest.param(
            {"aud": ["client", "other"], "azp": "other"},
            "issued to another client",
            id="handed on by another program",
        ),
        pytest.param({"nonce": "f" * 64}, "belongs to another sign-in", id="of another sign-in"),
        pytest.param({"nonce": None}, "belongs to another sign-in", id="of no sign-in"),
        pytest.param({"exp": -100}, "has expired", id="that has ended"),
        pytest.param({"iat": 300}, "not valid yet", id="from the future"),
        pytest.param({"nbf": 300}, "not valid yet", id="that is not valid yet"),
        pytest.param({"exp": None}, 'missing the "exp" claim', id="that never ends"),
        pytest.param({"sub": None}, 'missing the "sub" claim', id="about nobody"),
        pytest.param({"exp": "soon"}, "is not a number", id="with a time in words"),
    ],
)
async def test_an_id_token_is_refused(
    *,
    oidc: Any,
    trust: Way,
    by_oidc: Way,
    through_oidc: Way,
    refusal: Refusal,
    bent: dict[str, Any],
    why: str,
) -> None:
    await trust(by_oidc())
    start = to_unix(oidc.now)
    oidc.bent = {
        name: start + value if isinstance(value, int) else value for name, value in bent.items()
    }
    told = refusal(await through_oidc())
    assert told.startswith("Unable to find user: ")
    assert why.replace('"', "") in told


async def test_a_clock_that_is_a_little_off_does_no_harm(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, signed_in: SignedIn
) -> None:
    await trust(by_oidc())
    oidc.bent = {"iat": to_unix(oidc.now) + 30, "exp": to_unix(oidc.now) - 30}
    assert (await signed_in(await through_oidc())).name == "olga"


def signed(key: Any, algorithm: str, kid: str | None = "key-1") -> Callable[[dict[str, Any]], str]:
    headers = {"kid": kid} if kid else {}
    return lambda claims: jwt.encode(claims, key, algorithm, headers=headers)


def by_hand(secret: bytes) -> Callable[[dict[str, Any]], str]:
    """A token that is signed with a shared secret which a library would refuse to use."""

    def made(claims: dict[str, Any]) -> str:
        parts = ({"alg": "HS256", "kid": "key-1"}, claims)
        text = b".".join(
            urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts
        )
        signature = urlsafe_b64encode(hmac.digest(secret, text, "sha256")).rstrip(b"=")
        return (text + b"." + signature).decode()

    return made


async def test_only_a_signature_of_the_provider_counts(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, refusal: Refusal, rsa_keys: Any
) -> None:
    await trust(by_oidc())
    ours, theirs = rsa_keys
    public = ours.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for forge in (
        signed(theirs, "RS256"),
        signed(theirs, "RS256", None),
        signed(ours, "RS256", "another key"),
        signed(ours, "RS512"),
        signed(ec.generate_private_key(ec.SECP256R1()), "ES256"),
        signed(None, "none"),
        by_hand(b"s:ecret%"),
        # The old trick: the public key, which everyone knows, as the shared secret.
        by_hand(public),
        lambda claims: "not.a.token",
        lambda claims: "",
    ):
        oidc.forge = forge
        told = refusal(await through_oidc())
        assert told.startswith("Unable to find user: the ID token of the provider is not valid")
    oidc.forge = signed(ours, "RS256")
    assert (await through_oidc()).status_code == 302


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
    trust: Way,
    by_oidc: Way,
    through_oidc: Way,
    signed_in: SignedIn,
    advance: Callable[[float], None],
    cache_control: str,
    seconds: int,
) -> None:
    await trust(by_oidc())
    oidc.cache_control = cache_control
    for _ in range(3):
        assert (await signed_in(await through_oidc())).name == "olga"
    # A sign-in reads the discovery document twice and the keys once.
    assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (
        (1, 1) if seconds else (6, 3)
    )
    if seconds:
        oidc.asked.clear()
        advance(seconds - 1)
        await through_oidc()
        assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (0, 0)
        advance(1)
        await through_oidc()
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
    trust: Way,
    by_oidc: Way,
    through_oidc: Way,
    signed_in: SignedIn,
    rsa_keys: Any,
    kid: str | None,
) -> None:
    await trust(by_oidc())
    await through_oidc()
    oidc.key, oidc.kid = rsa_keys[1], kid
    for _ in range(2):
        assert (await signed_in(await through_oidc())).name == "olga"
    assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (1, 2)


async def test_a_token_of_an_unknown_key_fetches_the_keys_once(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, refusal: Refusal, rsa_keys: Any
) -> None:
    await trust(by_oidc())
    await through_oidc()
    oidc.forge = signed(rsa_keys[1], "RS256", "another key")
    assert "not one that the provider publishes" in refusal(await through_oidc())
    assert oidc.requests_for(KEYS) == 2


async def test_providers_behind_different_proxies_share_no_cache(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, signed_in: SignedIn
) -> None:
    await trust(by_oidc())
    assert (await signed_in(await through_oidc())).name == "olga"
    await trust(by_oidc(proxy_url=oidc.issuer))
    assert (await signed_in(await through_oidc())).name == "olga"
    assert (oidc.requests_for(DISCOVERY), oidc.requests_for(KEYS)) == (2, 2)


async def test_a_user_info_about_somebody_else_is_refused(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, refusal: Refusal
) -> None:
    await trust(by_oidc())
    oidc.user_info = {"sub": "sub-2", "roles": ["Admin"]}
    assert "belongs to another user" in refusal(await through_oidc())


@pytest.mark.parametrize(
    ("claims", "roles"),
    [
        pytest.param({"roles": ["Admin", "Viewer"]}, ("Admin", "Viewer"), id="a list"),
        pytest.param({"roles": "Admin"}, ("Admin",), id="a single text"),
        pytest.param(
            {"groups": ["Viewer"], "custom:roles": ["Editor"], "cognito:groups": ["Viewer"]},
            ("Viewer", "Editor"),
            id="several claims together",
        ),
        pytest.param({"roles": ["admin", 7, None, "Editor"]}, ("Editor",), id="odd values too"),
    ],
)
async def test_roles_are_told_by(
    *,
    oidc: Any,
    trust: Way,
    by_oidc: Way,
    through_oidc: Way,
    signed_in: SignedIn,
    claims: dict[str, Any],
    roles: tuple[str, ...],
) -> None:
    await trust(by_oidc())
    oidc.claims = {"name": "olga", **claims}
    assert (await signed_in(await through_oidc())).roles == roles


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        pytest.param({}, "no role found in claims", id="no claim about roles"),
        pytest.param({"roles": []}, "no role found in claims", id="an empty list"),
        pytest.param(
            {"roles": ["cooks", "admin"]}, "name none of the roles Admin", id="no known role"
        ),
    ],
)
async def test_without_a_role_somebody_stays_outside_unless_strays_may_look(
    *,
    oidc: Any,
    trust: Way,
    by_oidc: Way,
    through_oidc: Way,
    signed_in: SignedIn,
    refusal: Refusal,
    claims: dict[str, Any],
    why: str,
) -> None:
    await trust(by_oidc())
    oidc.claims = {"name": "stray", **claims}
    told = refusal(await through_oidc())
    assert told.startswith("Unable to find user: ")
    assert why in told
    assert "ask an administrator of project shop" in told
    await trust(allow_stray_as_viewer=True)
    assert (await signed_in(await through_oidc())).roles == ("Viewer",)


async def test_somebody_without_a_name_stays_outside(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, refusal: Refusal
) -> None:
    await trust(by_oidc())
    oidc.claims = {"roles": ["Admin"], "name": "", "username": 7}
    assert "contains your user name" in refusal(await through_oidc())


@pytest.mark.parametrize(
    ("discovery", "why"),
    [
        pytest.param({"issuer": "https://other.example"}, "calls itself", id="another name"),
        pytest.param({"authorization_endpoint": ""}, "authorization_endpoint", id="no way in"),
        pytest.param({"jwks_uri": ""}, "jwks_uri", id="no keys"),
        pytest.param(
            {"authorization_endpoint": "javascript:alert(1)"},
            "authorization_endpoint",
            id="a way in that is a script",
        ),
    ],
)
async def test_a_provider_that_describes_itself_badly_is_not_used(
    *,
    oidc: Any,
    trust: Way,
    by_oidc: Way,
    browser: Any,
    refusal: Refusal,
    discovery: dict[str, Any],
    why: str,
) -> None:
    await trust(by_oidc())
    oidc.discovery = discovery
    told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
    assert told.startswith("Internal error: ")
    assert why in told


async def test_a_provider_that_is_away_is_named(trust: Way, browser: Any, refusal: Refusal) -> None:
    config = ProjectSSOConfig(
        provider=ProjectSSOConfig.OIDC,
        oidc=ProjectSSOConfig.Oidc(
            client_id="client", client_secret="secret", issuer="http://127.0.0.1:1"
        ),
    )
    await trust(config)
    told = refusal(await browser.post("/auth/login", data={"project": "shop"}))
    assert told.startswith("Internal error: cannot reach 127.0.0.1:1")


async def test_a_wrong_secret_is_told_with_the_reason_of_the_provider(
    trust: Way, by_oidc: Way, through_oidc: Way, refusal: Refusal
) -> None:
    await trust(by_oidc(client_secret="wrong"))
    told = refusal(await through_oidc())
    assert told == "Unable to find user: the provider refused the sign-in: invalid_client"


async def test_a_proxy_is_used_for_everything(
    oidc: Any, trust: Way, by_oidc: Way, through_oidc: Way, signed_in: SignedIn
) -> None:
    # A request through a proxy names the whole address, which the server of the test can see.
    await trust(by_oidc(issuer="http://idp.invalid", proxy_url=oidc.issuer))
    proxy, oidc.issuer = oidc.issuer, "http://idp.invalid"
    oidc.discovery = {"authorization_endpoint": f"{proxy}/authorize"}
    assert (await signed_in(await through_oidc())).name == "olga"
    hosts = {request.headers["host"] for request in oidc.asked if request.url.path != "/authorize"}
    assert hosts == {"idp.invalid"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param({"proxy_url": "nonsense://x"}, "invalid proxy_url", id="a bad proxy"),
        pytest.param({"issuer": "http://[::"}, "is not a URL", id="a bad issuer"),
    ],
)
async def test_a_bad_setting_is_told(
    *,
    trust: Way,
    by_oidc: Way,
    browser: Any,
    refusal: Refusal,
    shared: dict[str, ProjectSSOConfig],
    fields: dict[str, str],
    why: str,
) -> None:
    shared["idp"] = by_oidc(**fields)
    await trust(shared_sso_name="idp")
    assert why in refusal(await browser.post("/auth/login", data={"project": "shop"}))
