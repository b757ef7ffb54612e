# SPDX-License-Identifier: Apache-2.0
"""The Cloud Run Admin API v1, as far as the plugin uses it, with projects in memory.

Requests are checked against the published shapes in `cloud_run_shapes.json` (revision 20260227 of
the discovery document) and against rules that the documentation gives in words.
"""

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from servers.web import Answer, Request, WebServer, in_json

SHAPES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("cloud_run_shapes.json").read_text()
)
PROJECT, PROJECT_NUMBER, REGION = "shop", "1234567890", "europe-west1"
_SCALARS = {"string": str, "integer": int, "boolean": bool}
_LIST_PARAMETERS = frozenset(
    [
        "continue",
        "fieldSelector",
        "includeUninitialized",
        "labelSelector",
        "limit",
        "resourceVersion",
        "watch",
    ]
)
# Parameters of every method of Google's APIs that their Go client sends.
_COMMON_PARAMETERS = frozenset(["alt", "prettyPrint"])
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_SERVICE_LABEL = "serving.knative.dev/service"
_MAX_NAME, _MAX_SERVICE_NAME, _MAX_PAGE = 63, 49, 500


class Refused(Exception):
    """The API refuses a request."""

    def __init__(self, code: int, status: str, message: str) -> None:
        super().__init__(message)
        self.answer = in_json({"error": {"code": code, "status": status, "message": message}}, code)


def invalid(message: str) -> Refused:
    return Refused(400, "INVALID_ARGUMENT", message)


@dataclass
class Stored:
    """A service or a revision, and when its last change is carried out."""

    body: dict[str, Any]
    ready_at: float
    failure: str = ""
    serving: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class CloudRun(WebServer):
    """One project in one region; a change takes `seconds` to be carried out."""

    def __init__(self, directory: Path, *, seconds: float = 0.02) -> None:
        self.seconds = seconds
        self.services: dict[str, Stored] = {}
        self.revisions: dict[str, Stored] = {}
        self.calls: list[str] = []
        self.broken_images: dict[str, str] = {}
        """The images whose containers do not start, with the reason."""
        self.faults: list[Answer | None] = []
        """Answers to the next requests instead of the right ones; None closes the connection."""
        self.refuse: Callable[[Request], Answer | None] = lambda _: None
        """Chooses the requests that fail, and the answers to them."""
        self.on_answer: Callable[[Request], None] | None = None
        """Is called when a request was carried out and before its client knows."""
        self.tokens = 0
        self._versions = 0
        self._lock = threading.Lock()
        super().__init__()
        self.account = directory / "service-account.json"
        self.account.write_text(json.dumps(self._service_account()))

    @property
    def target(self) -> dict[str, str]:
        """The settings of a deploy target for this server."""
        return {
            "project": PROJECT,
            "region": REGION,
            "credentialsFile": str(self.account),
            "endpoint": self.address,
        }

    def traffic(self, service: str) -> dict[str, int]:
        """Returns the shares of the revisions that serve now."""
        with self._lock:
            shown = self._shown_service(self.services[service])
        return {each["revisionName"]: each["percent"] for each in shown["status"]["traffic"]}

    def edit(self, service: str, change: Any) -> None:
        """Changes a service as somebody else would."""
        with self._lock:
            change(self.services[service].body)
            self._touch(self.services[service])

    def expire_tokens(self) -> None:
        """Refuses the tokens that were issued."""
        self.tokens += 1

    def answer(self, request: Request) -> Answer | None:
        if request.path == "/token":
            token = {"access_token": self._token, "expires_in": 3600, "token_type": "Bearer"}
            return in_json(token)
        if request.path == "/refused":
            return in_json({"error": "invalid_grant", "error_description": "the key expired"}, 400)
        with self._lock:
            self.calls.append(f"{request.method} {request.path.rpartition('namespaces/')[2]}")
            if self.faults:
                return self.faults.pop(0)
            if refused := self.refuse(request):
                return refused
            try:
                answer = in_json(self._respond(request))
            except Refused as e:
                return e.answer
        if self.on_answer:
            self.on_answer(request)
        return answer

    @property
    def _token(self) -> str:
        return f"token-{self.tokens}"

    def _respond(self, request: Request) -> Any:
        if request.authorization != f"Bearer {self._token}":
            raise Refused(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
        prefix, _, rest = unquote(request.path).partition("/namespaces/")
        project, kind, *name = rest.split("/")
        if prefix != "/apis/serving.knative.dev/v1" or kind not in ("services", "revisions"):
            raise Refused(404, "NOT_FOUND", "Requested entity was not found.")
        if project not in (PROJECT, PROJECT_NUMBER):
            message = f"Permission 'run.{kind}.get' denied on resource 'namespaces/{project}'."
            raise Refused(403, "PERMISSION_DENIED", message)
        match request.method, kind, name:
            case "GET", _, []:
                return self._listed(kind, request)
            case "GET", "services", [found]:
                return self._shown_service(self._found(self.services, found))
            case "GET", "revisions", [found]:
                return self._shown_revision(self._found(self.revisions, found))
            case "POST", "services", []:
                return self._create(_valid_service(request.body))
            case "PUT", "services", [found]:
                return self._replace(found, _valid_service(request.body))
            case _:
                raise Refused(404, "NOT_FOUND", "The method is not part of this server.")

    def _found(self, among: Mapping[str, Stored], name: str) -> Stored:
        if name not in among:
            raise Refused(404, "NOT_FOUND", f"Resource '{name}' of kind was not found.")
        return among[name]

    def _listed(self, kind: str, request: Request) -> Any:
        unknown = request.fields.keys() - _LIST_PARAMETERS - _COMMON_PARAMETERS
        if unknown:
            raise invalid(f"Unknown name {sorted(unknown)}: Cannot bind query parameter.")
        shown = (
            [self._shown_service(each) for each in self.services.values()]
            if kind == "services"
            else [self._shown_revision(each) for each in self.revisions.values()]
        )
        [selector] = request.fields.get("labelSelector", [""])
        matching = [e for e in shown if _matches(selector, e["metadata"].get("labels", {}))]
        start = int(request.fields.get("continue", ["0"])[0])
        end = start + min(int(request.fields.get("limit", [_MAX_PAGE])[0]), _MAX_PAGE)
        more = {"continue": str(end)} if end < len(matching) else {}
        return {"kind": f"{kind.title()[:-1]}List", "metadata": more, "items": matching[start:end]}

    def _create(self, body: dict[str, Any]) -> Any:
        name = body["metadata"]["name"]
        if name in self.services:
            raise Refused(409, "ALREADY_EXISTS", f"Resource '{name}' already exists.")
        stored = Stored(self._new(body), 0)
        stored.body["metadata"]["generation"] = 0
        self._carry_out(stored, body)
        self.services[name] = stored
        return self._shown_service(stored)

    def _replace(self, name: str, body: dict[str, Any]) -> Any:
        stored = self._found(self.services, name)
        if body["metadata"]["name"] != name:
            raise invalid(f"metadata.name does not match the name of the request, {name}.")
        current = stored.body["metadata"]["resourceVersion"]
        given = body["metadata"].get("resourceVersion", current)
        if given != current:
            raise Refused(
                409,
                "ABORTED",
                f"Conflict for resource '{name}': version '{given}' was specified but current "
                f"version is '{current}'.",
            )
        self._carry_out(stored, body)
        return self._shown_service(stored)

    def _carry_out(self, stored: Stored, body: dict[str, Any]) -> None:
        """Creates the revision of a template and moves the traffic."""
        service = body["metadata"]["name"]
        template = body["spec"]["template"]
        # The traffic before the change is what serves until it is carried out.
        serving = self._serving(stored) if service in self.services else []
        revision, is_new = self._revision(service, template)
        if is_new is not None:
            self.revisions[revision] = is_new
        try:
            self._check_traffic(body["spec"].get("traffic", ()), service)
        except Refused:
            if is_new is not None:
                del self.revisions[revision]
            raise
        stored.serving = serving
        metadata = {**stored.body["metadata"], **copy.deepcopy(body["metadata"])}
        metadata["namespace"] = PROJECT_NUMBER
        stored.body = {**copy.deepcopy(body), "metadata": metadata}
        stored.body["metadata"]["generation"] += 1
        stored.body["status"] = {"latestCreatedRevisionName": revision}
        stored.failure = self.revisions[revision].failure
        stored.ready_at = max(self.revisions[revision].ready_at, time.monotonic() + self.seconds)
        self._touch(stored)

    def _revision(self, service: str, template: dict[str, Any]) -> tuple[str, Stored | None]:
        """Returns the revision of a template, and it if it is new."""
        metadata = template.get("metadata", {})
        name = metadata.get("name") or f"{service}-{len(self.revisions) + 1:05}-abc"
        if not name.startswith(f"{service}-") or not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
            raise invalid(
                f"spec.template.metadata.name: '{name}' must begin with '{service}-', have "
                "lowercase letters, digits and '-' only and at most 63 characters."
            )
        if name in self.revisions:
            if self.revisions[name].body["template"] != template:
                raise Refused(
                    409,
                    "ALREADY_EXISTS",
                    f"Revision named '{name}' with different configuration already exists.",
                )
            return name, None
        containers = template["spec"]["containers"]
        broken = [
            self.broken_images[c["image"]] for c in containers if c["image"] in self.broken_images
        ]
        body = self._new(
            {
                "apiVersion": "serving.knative.dev/v1",
                "kind": "Revision",
                "metadata": {
                    **copy.deepcopy(metadata),
                    "name": name,
                    "labels": {**metadata.get("labels", {}), _SERVICE_LABEL: service},
                    "ownerReferences": [{"kind": "Configuration", "uid": str(uuid.uuid4())}],
                },
                "spec": {"containerConcurrency": 80, **copy.deepcopy(template["spec"])},
                "template": copy.deepcopy(template),
            }
        )
        failure = broken[0] if broken else ""
        return name, Stored(body, time.monotonic() + self.seconds, failure)

    def _check_traffic(self, traffic: Any, service: str) -> None:
        for target in traffic:
            name = target.get("revisionName")
            if name and target.get("latestRevision"):
                raise invalid("revisionName and latestRevision are mutually exclusive.")
            owner = name and name in self.revisions and self._labels(name).get(_SERVICE_LABEL)
            if name and owner != service:
                raise invalid(f"Revision '{name}' in spec.traffic does not exist.")
        if traffic and sum(target.get("percent", 0) for target in traffic) != 100:
            raise invalid("Traffic percentages must sum to 100.")

    def _labels(self, revision: str) -> dict[str, str]:
        return self.revisions[revision].body["metadata"]["labels"]

    def _serving(self, stored: Stored) -> list[dict[str, Any]]:
        """Returns the traffic that is effective now; that to a failed revision is not."""
        if time.monotonic() < stored.ready_at or self._route_failure(stored):
            return stored.serving
        return self._routed(stored)

    def _routed(self, stored: Stored) -> list[dict[str, Any]]:
        latest = stored.body["status"]["latestCreatedRevisionName"]
        wanted = stored.body["spec"].get("traffic") or [{"latestRevision": True, "percent": 100}]
        return [{"revisionName": latest, **target} for target in wanted]

    def _route_failure(self, stored: Stored) -> str:
        """Returns why a revision cannot get its share; those without traffic do not matter."""
        names = [target["revisionName"] for target in self._routed(stored)]
        failures = [self.revisions[name].failure for name in names if name in self.revisions]
        return next(filter(None, failures), "")

    def _shown_service(self, stored: Stored) -> dict[str, Any]:
        body = copy.deepcopy(stored.body)
        is_done = time.monotonic() >= stored.ready_at
        metadata, status = body["metadata"], body["status"]
        status["observedGeneration"] = metadata["generation"] - (0 if is_done else 1)
        status["url"] = f"https://{metadata['name']}-abc.a.run.app"
        status["traffic"] = copy.deepcopy(self._serving(stored))
        failure = (
            stored.failure and f"Revision is not ready and cannot serve traffic. {stored.failure}"
        )
        status["conditions"] = [
            *_conditions(("Ready", "ConfigurationsReady"), is_done, failure),
            *_conditions(("RoutesReady",), is_done, self._route_failure(stored)),
        ]
        return body

    def _shown_revision(self, stored: Stored) -> dict[str, Any]:
        body = {
            key: value for key, value in copy.deepcopy(stored.body).items() if key != "template"
        }
        is_done = time.monotonic() >= stored.ready_at
        types = ("Ready", "Active", "ContainerHealthy", "ResourcesAvailable")
        conditions = list(_conditions(types, is_done, stored.failure))
        name = body["metadata"]["name"]
        service = self.services.get(body["metadata"]["labels"][_SERVICE_LABEL])
        serving = self._serving(service) if service else []
        is_retired = is_done and not any(each["revisionName"] == name for each in serving)
        if is_retired and not stored.failure:
            conditions[1] |= {
                "status": "False",
                "reason": "Retired",
                "message": "Revision retired.",
                "severity": "Info",
            }
        log = "https://console.cloud.google.com/logs/viewer"
        body["status"] = {"conditions": conditions, "logUrl": log, "observedGeneration": 1}
        return body

    def _new(self, body: dict[str, Any]) -> dict[str, Any]:
        body = copy.deepcopy(body)
        body["metadata"] |= {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
            "generation": 1,
            "namespace": PROJECT_NUMBER,
        }
        return body

    def _touch(self, stored: Stored) -> None:
        self._versions += 1
        stored.body["metadata"]["resourceVersion"] = f"AAX{self._versions:05}"

    def _service_account(self) -> dict[str, str]:
        return {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "1",
            "private_key": _private_key(),
            "client_email": "piped@shop.example.com",
            "client_id": "1",
            "token_uri": f"{self.address}/token",
        }


@cache
def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _conditions(types: tuple[str, ...], is_done: bool, failure: str) -> Iterator[dict[str, str]]:
    for type_ in types:
        if not is_done:
            message = "Deploying Revision. Waiting on revision."
            yield {"type": type_, "status": "Unknown", "reason": "Deploying", "message": message}
        elif failure and type_ not in ("Active", "ResourcesAvailable"):
            reason = "HealthCheckContainerError"
            yield {"type": type_, "status": "False", "reason": reason, "message": failure}
        else:
            yield {"type": type_, "status": "True"}


def _matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Evaluates a label selector with `=` and `in`."""
    for term in re.split(r",(?![^(]*\))", selector) if selector else ():
        if among := re.fullmatch(r"\s*(\S+) in \(([^()]+)\)\s*", term):
            if labels.get(among[1]) not in among[2].split(","):
                return False
        elif equal := re.fullmatch(r"\s*([^=\s]+)=([^=\s]*)\s*", term):
            if labels.get(equal[1], "") != equal[2]:
                return False
        else:
            raise invalid(f"Invalid label selector '{term}'.")
    return True


def _valid_service(content: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(content)
    check_shape(body, "Service", "service")
    metadata = body.get("metadata", {})
    name = metadata.get("name", "")
    if (body.get("apiVersion"), body.get("kind")) != ("serving.knative.dev/v1", "Service"):
        raise invalid("apiVersion and kind must be those of a service.")
    if not _NAME.fullmatch(name) or len(name) > _MAX_SERVICE_NAME:
        raise invalid(f"metadata.name: '{name}' is not the name of a service.")
    if metadata.get("namespace", PROJECT) not in (PROJECT, PROJECT_NUMBER):
        raise invalid("metadata.namespace must be the project ID or number.")
    template = body.get("spec", {}).get("template", {})
    for labels in (metadata.get("labels", {}), template.get("metadata", {}).get("labels", {})):
        for key, value in labels.items():
            if not _LABEL.fullmatch(value):
                raise invalid(f"Value '{value}' of label '{key}' is invalid.")
    if any("url" in target for target in body["spec"].get("traffic", ())):
        raise invalid("spec.traffic.url is disallowed.")
    if not template.get("spec", {}).get("containers"):
        raise invalid("spec.template.spec.containers: must have at least one container.")
    return body


def check_shape(value: Any, shape: Any, where: str) -> None:
    """Refuses what the published shape does not have, as Google's JSON parser does."""
    match shape:
        case [element]:
            if not isinstance(value, list):
                raise invalid(f"Invalid value at '{where}', a list is expected.")
            for index, each in enumerate(value):
                check_shape(each, element, f"{where}[{index}]")
        case {"*": element}:
            for key, each in value.items():
                check_shape(each, element, f"{where}.{key}")
        case str() if shape in _SCALARS:
            is_number_as_bool = isinstance(value, bool) and shape == "integer"
            if not isinstance(value, _SCALARS[shape]) or is_number_as_bool:
                raise invalid(f"Invalid value at '{where}' (TYPE_{shape.upper()}), {value!r}")
        case _:
            if not isinstance(value, dict):
                raise invalid(f"Invalid value at '{where}', an object is expected.")
            for key, each in value.items():
                if key not in SHAPES[shape]:
                    raise invalid(
                        f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': "
                        "Cannot find field."
                    )
                check_shape(each, SHAPES[shape][key], f"{where}.{key}")
