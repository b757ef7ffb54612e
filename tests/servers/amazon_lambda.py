# SPDX-License-Identifier: Apache-2.0
"""What Lambda does and moto does not."""

from dataclasses import dataclass, field
from typing import Any

from servers.amazon import ACCOUNT, REGION, Call, Parameters, Refusal

_CHANGES = ("UpdateFunctionCode", "UpdateFunctionConfiguration")
_ONLY_ZIP = ("Runtime", "Handler", "Layers")


def lambda_backend(region: str = REGION) -> Any:
    """Returns the functions in moto."""
    from moto.awslambda.models import lambda_backends

    return lambda_backends[ACCOUNT][region]


@dataclass
class LambdaRules:
    """A change takes `reads` reads of the function; that of a `failing` image or handler fails."""

    reads: int = 1
    failing: dict[str, str] = field(default_factory=dict[str, str])
    _busy: dict[str, int] = field(default_factory=dict[str, int])
    _failed: dict[str, str] = field(default_factory=dict[str, str])
    _new: set[str] = field(default_factory=set[str])

    def reset(self) -> None:
        self.reads = 1
        for known in (self.failing, self._busy, self._failed, self._new):
            known.clear()

    def make_busy(self, name: str, reads: int, *, failure: str = "") -> None:
        """Lets a change of somebody else be in progress, which may fail."""
        self._busy[name], self._failed[name] = reads, failure

    def check(self, call: Call) -> None:
        name = call.parameters.get("FunctionName", "")
        match call.operation:
            case "CreateFunction":
                _check_creation(name, call.parameters)
            case "UpdateFunctionCode" | "UpdateFunctionConfiguration" | "PublishVersion":
                self._check_idle(name)
                _check_package(name, call.parameters)
            case "CreateAlias" | "UpdateAlias":
                _check_alias(call)
            case _:
                pass

    def replace(self, call: Call) -> Parameters | None:
        return None

    def amend(self, call: Call, answer: Parameters) -> None:
        name = call.parameters.get("FunctionName", "")
        if call.operation == "CreateFunction":
            self._new.add(name)
        if call.operation == "PublishVersion":
            # Later changes of the code are not those of the version.
            version = lambda_backend()._lambdas._functions[name]["versions"][-1]
            version.code = dict(version.code)
        if call.operation in _CHANGES:
            _keep_settings(name, call.parameters)
        if call.operation in (*_CHANGES, "CreateFunction"):
            self._busy[name] = self.reads
            given = {**call.parameters, **call.parameters.get("Code", {})}
            sent = (given.get("ImageUri"), given.get("Handler"))
            reasons = [self.failing[each] for each in sent if each in self.failing]
            self._failed[name] = reasons[0] if reasons else ""
        if "Qualifier" in call.parameters:
            return
        if call.operation in ("GetFunction", "GetFunctionConfiguration", *_CHANGES):
            self._show(
                name, answer.get("Configuration", answer), is_change=call.operation in _CHANGES
            )

    def _show(self, name: str, shown: Parameters, *, is_change: bool) -> None:
        if self._busy.get(name, 0) > 0:
            self._busy[name] -= 0 if is_change else 1
            is_new = name in self._new
            shown["State"] = "Pending" if is_new else "Active"
            shown["LastUpdateStatus"] = "Successful" if is_new else "InProgress"
        elif self._failed.get(name):
            shown["LastUpdateStatus"] = "Failed"
            shown["LastUpdateStatusReason"] = self._failed[name]
        else:
            self._new.discard(name)

    def _check_idle(self, name: str) -> None:
        if self._busy.get(name, 0) > 0:
            # What waits without reading the function waits, too.
            self._busy[name] -= 1
            raise Refusal(
                "ResourceConflictException",
                "The operation cannot be performed at this time. An update is in progress for "
                f"resource: {name}",
                status=409,
            )


def _keep_settings(name: str, parameters: Parameters) -> None:
    """Stores the settings that moto forgets."""
    function = lambda_backend()._lambdas._functions[name]["latest"]
    if "EphemeralStorage" in parameters:
        function.ephemeral_storage = parameters["EphemeralStorage"]["Size"]
    if "Architectures" in parameters:
        function.architectures = parameters["Architectures"]


def _check_creation(name: str, parameters: Parameters) -> None:
    if name in lambda_backend()._lambdas._functions:
        message = f"Function already exist: {name}"
        raise Refusal("ResourceConflictException", message, status=409)
    if parameters.get("PackageType") == "Image":
        _refuse_zip_settings(parameters)
    elif not parameters.get("Runtime") or not parameters.get("Handler"):
        raise Refusal("InvalidParameterValueException", "Runtime and Handler are mandatory.")


def _check_package(name: str, parameters: Parameters) -> None:
    function = lambda_backend()._lambdas._functions.get(name)
    if function is None:
        return
    is_image = function["latest"].package_type == "Image"
    if is_image:
        _refuse_zip_settings(parameters)
    if is_image and {"ZipFile", "S3Bucket"} & parameters.keys():
        message = "Please don't provide ZipFile when updating a function with packageType Image."
        raise Refusal("InvalidParameterValueException", message)
    if not is_image and "ImageUri" in parameters:
        message = "Please don't provide ImageUri when updating a function with packageType Zip."
        raise Refusal("InvalidParameterValueException", message)


def _refuse_zip_settings(parameters: Parameters) -> None:
    given = [key for key in _ONLY_ZIP if key in parameters]
    if given:
        message = (
            f"{', '.join(given)} are not supported for functions created with container images."
        )
        raise Refusal("InvalidParameterValueException", message)


def _check_alias(call: Call) -> None:
    name, primary = call.parameters["FunctionName"], call.parameters.get("FunctionVersion", "")
    weights = call.parameters.get("RoutingConfig", {}).get("AdditionalVersionWeights", {})
    functions = lambda_backend()._lambdas
    aliases = functions._get_function_aliases(name) if name in functions._functions else {}
    if call.operation == "CreateAlias" and call.parameters["Name"] in aliases:
        raise Refusal("ResourceConflictException", "Alias already exists", status=409)
    if len(weights) > 1:
        raise Refusal("InvalidParameterValueException", "Number of items in weights exceeds 1.")
    for version, weight in weights.items():
        if not 0 <= weight <= 1:
            raise Refusal("InvalidParameterValueException", "A weight must be between 0 and 1.")
        if version == primary or "$LATEST" in (version, primary):
            message = f"Version {version} cannot be in AdditionalVersionWeights."
            raise Refusal("InvalidParameterValueException", message)
        published = functions._functions[name]["versions"]
        if version not in {str(each.version) for each in published}:
            message = f"Function not found: {name}:{version}"
            raise Refusal("ResourceNotFoundException", message, status=404)
