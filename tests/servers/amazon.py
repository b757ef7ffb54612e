# SPDX-License-Identifier: Apache-2.0
"""AWS on loopback: moto behind a layer that is as strict as AWS.

Every request is checked against botocore's model of the service. What AWS refuses and moto allows
is refused, and what moto leaves out of its answers is added, by the rules of each service
(`amazon_ecs`, …). Tests let requests fail with `refuse` and read them in `calls`.
"""

import io
import json
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Thread
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

ACCOUNT = "123456789012"
REGION = "eu-west-1"
Parameters = dict[str, Any]
_CREDENTIAL = re.compile(r"Credential=(?P<key>[^/]+)/\d+/(?P<region>[^/]+)/(?P<service>[^/]+)/")
# The names of services in signatures that are not those of botocore.
_SIGNED_AS = {"elasticloadbalancing": "elbv2"}
_CHECKED = frozenset({"ecs", "elbv2", "lambda", "servicediscovery"})


class Refusal(Exception):
    """AWS answers with an error."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass(frozen=True)
class Call:
    """A request that arrived."""

    service: str
    operation: str
    parameters: Parameters
    region: str = REGION


class Rules(Protocol):
    """What AWS does and moto does not, for one service."""

    def check(self, call: Call) -> None:
        """Raises `Refusal` for what AWS refuses."""

    def replace(self, call: Call) -> Parameters | None:
        """Returns the whole answer, or None if moto answers."""

    def amend(self, call: Call, answer: Parameters) -> None:
        """Adds to an answer of moto; only for services that speak JSON."""

    def reset(self) -> None:
        """Forgets everything."""


@dataclass
class _Fault:
    refusal: Refusal
    times: int
    where: Callable[[Parameters], bool]


@dataclass
class Amazon:
    """The server; it runs in a thread of the tests."""

    rules: Mapping[str, Rules]
    calls: list[Call] = field(default_factory=list[Call])
    answers: dict[str, Parameters] = field(default_factory=dict[str, Parameters])
    """Answers that a test chooses, by operation."""
    on_answer: Callable[[Call], None] | None = None
    """Is called when an operation was carried out and before its client knows."""
    _faults: dict[str, list[_Fault]] = field(default_factory=dict[str, list[_Fault]])
    _lost: dict[str, int] = field(default_factory=dict[str, int])
    _refused_keys: dict[str, str] = field(default_factory=dict[str, str])
    url: str = ""

    def start(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def reset(self) -> None:
        self.calls.clear()
        self.answers.clear()
        self._faults.clear()
        self._lost.clear()
        self._refused_keys.clear()
        self.on_answer = None
        for rules in self.rules.values():
            rules.reset()

    @property
    def environment(self) -> dict[str, str]:
        """The credentials that clients of this server need."""
        return {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str) -> Any:
        """Returns a client with which a test prepares and looks at resources."""
        import boto3

        return boto3.client(
            service,  # pyright: ignore[reportArgumentType]
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="tests",
            aws_secret_access_key="tests",
        )

    def refuse(
        self,
        operation: str,
        code: str,
        message: str = "",
        *,
        times: int = 1_000_000,
        status: int = 400,
        where: Callable[[Parameters], bool] = lambda _: True,
    ) -> None:
        """Lets the next requests of an operation fail."""
        fault = _Fault(Refusal(code, message or code, status=status), times, where)
        self._faults.setdefault(operation, []).append(fault)

    def refuse_key(self, key: str, code: str) -> None:
        """Lets every request with an access key fail."""
        self._refused_keys[key] = code

    def allow(self, operation: str) -> None:
        """Ends what `refuse` began."""
        self._faults.pop(operation, None)

    def after(self, operation: str, act: Callable[[], None]) -> None:
        """Acts once when an operation was carried out, before its client knows."""

        def answered(call: Call) -> None:
            if call.operation == operation:
                self.on_answer = None
                act()

        self.on_answer = answered

    def lose_answers(self, operation: str, *, times: int = 1) -> None:
        """Lets the next requests of an operation be carried out, and their answers be lost."""
        self._lost[operation] = times

    def operations(self, *names: str) -> list[str]:
        """Returns the names of the requests that arrived, in order."""
        return [call.operation for call in self.calls if not names or call.operation in names]

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        signed = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        service = signed["service"] if signed else ""
        service = _SIGNED_AS.get(service, service)
        if signed is None or service not in _CHECKED:
            return self._moto(environ, start)
        model = _model(service)
        try:
            operation, parameters = _parse(model, environ, body)
            call = Call(service, operation, parameters, signed["region"])
            self.calls.append(call)
            self._fail(call, signed["key"])
            rules = self.rules.get(service)
            if rules is None:
                return self._moto(environ, start)
            rules.check(call)
            replaced = self.answers.get(operation) or rules.replace(call)
            if replaced is not None:
                return _respond(start, 200, json.dumps(replaced, default=str), "json")
            return self._amended(call, rules, environ, start)
        except Refusal as refusal:
            return _refused(start, refusal, model.metadata["protocol"])

    def _fail(self, call: Call, key: str) -> None:
        if code := self._refused_keys.get(key):
            raise Refusal(code, f"The key {key} is not accepted.")
        for fault in self._faults.get(call.operation, ()):
            if fault.times and fault.where(call.parameters):
                fault.times -= 1
                raise fault.refusal

    def _amended(
        self, call: Call, rules: Rules, environ: dict[str, Any], start: Callable[..., Any]
    ) -> Iterable[bytes]:
        head: list[Any] = []

        def keep(status: str, headers: Sequence[tuple[str, str]], *_: Any) -> None:
            head[:] = [status, headers]

        answer = b"".join(self._moto(environ, keep))
        status, headers = head
        if status.startswith(("200", "201")) and answer.startswith(b"{"):
            document = json.loads(answer)
            rules.amend(call, document)
            answer = json.dumps(document, default=str).encode()
            headers = [each for each in headers if each[0].lower() != "content-length"]
            headers.append(("Content-Length", str(len(answer))))
        if self.on_answer:
            self.on_answer(call)
        if self._lost.get(call.operation, 0):
            self._lost[call.operation] -= 1
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        start(status, headers)
        return [answer]


@cache
def _model(service: str) -> Any:
    import botocore.session

    core: Any = botocore.session.Session()
    return core.get_service_model(service)


def _parse(model: Any, environ: dict[str, Any], body: bytes) -> tuple[str, Parameters]:
    """Returns the operation and its parameters, if botocore's model knows all of them."""
    from botocore.validate import ParamValidator

    match model.metadata["protocol"]:
        case "json":
            name = environ["HTTP_X_AMZ_TARGET"].rpartition(".")[2]
            parameters = json.loads(body or b"{}")
        case "query":
            return _parse_query(model, dict(parse_qsl(body.decode(), keep_blank_values=True)))
        case _:
            name, labels = _rest_operation(model, environ)
            is_json = body.startswith(b"{")
            in_query = _query_members(model.operation_model(name), environ["QUERY_STRING"])
            parameters = {**(json.loads(body) if is_json else {}), **labels, **in_query}
    operation = model.operation_model(name)
    report = ParamValidator().validate(parameters, operation.input_shape)
    if report.has_errors():
        raise Refusal("ValidationException", f"not in the model: {report.generate_report()}")
    return name, parameters


def _parse_query(model: Any, form: dict[str, str]) -> tuple[str, Parameters]:
    from botocore.serialize import create_serializer
    from moto.core.parse import PROTOCOL_PARSERS
    from moto.core.utils import get_service_model

    name = form.pop("Action")
    form.pop("Version")
    operation: Any = get_service_model(model.service_name).operation_model(name)
    parser: Any = PROTOCOL_PARSERS["query"]
    request = {"body": b"", "url_path": "/", "query_string": {}, "headers": {}, "values": form}
    parameters: Parameters = parser(operation).parse(request)
    serializer: Any = create_serializer("query", include_validation=True)
    again = serializer.serialize_to_request(parameters, operation)["body"]
    unknown = form.keys() - again.keys()
    if unknown:
        raise Refusal("ValidationError", f"not in the model: {sorted(unknown)}")
    return name, parameters


def _query_members(operation: Any, query: str) -> Parameters:
    """Returns the parameters in the query of a request; unknown ones keep their names."""
    members = {
        member.serialization["name"]: (name, member.type_name)
        for name, member in operation.input_shape.members.items()
        if member.serialization.get("location") == "querystring"
    }
    parameters: Parameters = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        name, kind = members.get(key, (key, "string"))
        if kind == "list":
            parameters.setdefault(name, []).append(value)
        else:
            parameters[name] = int(value) if kind == "integer" else value
    return parameters


def _rest_operation(model: Any, environ: dict[str, Any]) -> tuple[str, Parameters]:
    path = environ["PATH_INFO"]
    for name in model.operation_names:
        operation = model.operation_model(name)
        uri = operation.http["requestUri"].partition("?")[0]
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(uri))
        found = re.fullmatch(pattern, path)
        if found and operation.http["method"] == environ["REQUEST_METHOD"]:
            return name, {key: unquote(value) for key, value in found.groupdict().items()}
    raise Refusal("UnknownOperationException", path, status=404)


def _refused(start: Callable[..., Any], refusal: Refusal, protocol: str) -> Iterable[bytes]:
    if protocol == "query":
        text = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{escape(refusal.code)}</Code>"
            f"<Message>{escape(refusal.message)}</Message></Error></ErrorResponse>"
        )
        return _respond(start, refusal.status, text, "xml")
    document = {"__type": refusal.code, "message": refusal.message, "Message": refusal.message}
    return _respond(start, refusal.status, json.dumps(document), "json", code=refusal.code)


def _respond(
    start: Callable[..., Any], status: int, text: str, kind: str, *, code: str = ""
) -> Iterable[bytes]:
    content = text.encode()
    headers = [("Content-Type", f"application/{kind}"), ("Content-Length", str(len(content)))]
    if code:
        headers.append(("x-amzn-ErrorType", code))
    start(f"{status} -", headers)
    return [content]
