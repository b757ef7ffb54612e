# SPDX-License-Identifier: Apache-2.0
"""The manifest of a function, and the parameters of AWS that follow from it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from pipecd.plugins.aws_lambda.config import LambdaApplication, LambdaFunction
from pipecd.sdk import Source, Version
from pipecd.sdk.diff import is_map
from pipecd.sdk.images import Image
from pipecd.sdk.manifests import ManifestType
from pipecd.sdk.options import decode_value
from pipecd.sdk.unstructured import map_at, text_at

FUNCTION = ManifestType(
    "pipecd.dev/v1beta1", "LambdaFunction", "function", setting="input.functionManifestFile"
)
_DEFAULT_STORAGE, _DEFAULT_ARCHITECTURE = 512, "x86_64"
_SCP_REMOTE = re.compile(r"(?:[^@/]+@)?(?P<host>[^:/]+):(?P<path>[^/].*)")
# How hosts of repositories name the page of a commit.
_COMMIT_PAGES = {"github.com": "commit", "gitlab.com": "commit", "bitbucket.org": "commits"}


def read_manifest(source: Source, plugin: str) -> LambdaFunction:
    """Reads the manifest of an application."""
    file = source.application_settings(plugin, LambdaApplication).input.function_manifest_file
    spec = map_at(FUNCTION.read(source, file), "spec")
    return decode_value(LambdaFunction, spec, what=f"{file}: spec")


def is_from_git(function: LambdaFunction) -> bool:
    """Reports whether the code is packed from a Git repository."""
    return not function.image and not function.s3_bucket


def configuration(
    function: LambdaFunction, *, replaced: LambdaFunction | None = None
) -> dict[str, Any]:
    """Returns the configuration of a function.

    What Git leaves open is not in it, unless the manifest that it replaces has declared it: then it
    gets the default of AWS again.
    """
    wanted: dict[str, Any] = {
        "Role": function.role,
        "MemorySize": function.memory,
        "Timeout": function.timeout,
        "Environment": {"Variables": dict(function.environments)},
    }
    if not function.image:
        wanted["Runtime"], wanted["Handler"] = function.runtime, function.handler
    if not function.image or function.layers:
        wanted["Layers"] = list(function.layers)
    if function.ephemeral_storage is not None:
        wanted["EphemeralStorage"] = {"Size": function.ephemeral_storage.size}
    elif replaced is not None and replaced.ephemeral_storage is not None:
        wanted["EphemeralStorage"] = {"Size": _DEFAULT_STORAGE}
    if function.vpc_config is not None:
        wanted["VpcConfig"] = {
            "SecurityGroupIds": list(function.vpc_config.security_group_ids),
            "SubnetIds": list(function.vpc_config.subnet_ids),
        }
    elif replaced is not None and replaced.vpc_config is not None:
        wanted["VpcConfig"] = {"SecurityGroupIds": [], "SubnetIds": []}
    return wanted


def has_configuration(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Reports whether a live function is configured as wanted."""
    vpc = map_at(live, "VpcConfig")
    shown: dict[str, Any] = {
        **live,
        "Environment": {"Variables": dict(map_at(live, "Environment", "Variables"))},
        "Layers": [text_at(layer, "Arn") for layer in live.get("Layers") or ()],
        "VpcConfig": {key: vpc.get(key) or [] for key in ("SecurityGroupIds", "SubnetIds")},
    }
    return all(_in_any_order(shown.get(key)) == _in_any_order(wanted[key]) for key in wanted)


def _in_any_order(value: Any) -> Any:
    """Returns a value whose lists of ids do not depend on their order; that of layers does."""
    if is_map(value):
        return {
            key: sorted(child) if key in ("SecurityGroupIds", "SubnetIds") else child
            for key, child in value.items()
        }
    return value


def code(function: LambdaFunction, package: bytes | None) -> dict[str, Any]:
    """Returns where the code is; `package` has it if it comes from Git."""
    if function.image:
        return {"ImageUri": function.image}
    if function.s3_bucket:
        version = function.s3_object_version
        return {
            "S3Bucket": function.s3_bucket,
            "S3Key": function.s3_key,
            **({"S3ObjectVersion": version} if version else {}),
        }
    return {"ZipFile": package}


def package_type(function: LambdaFunction) -> str:
    """Returns how the code is packed, which cannot be changed later."""
    return "Image" if function.image else "Zip"


def architectures(
    function: LambdaFunction, *, replaced: LambdaFunction | None = None
) -> dict[str, Any]:
    """Returns the parameter for the instruction sets, if Git declares or declared them."""
    names = [architecture.name for architecture in function.architectures]
    if not names and replaced is not None and replaced.architectures:
        names = [_DEFAULT_ARCHITECTURE]
    return {"Architectures": names} if names else {}


def versions(function: LambdaFunction) -> Sequence[Version]:
    """Returns the version of the code: an image, an object of S3 or a commit."""
    if function.image:
        image = Image.of(function.image)
        return (Version(image.tag, image.name, image.reference),)
    if function.s3_bucket:
        if not function.s3_object_version:
            return ()
        page = (
            f"https://console.aws.amazon.com/s3/object/{quote(function.s3_bucket)}"
            f"?prefix={quote(function.s3_key)}"
        )
        return (Version(function.s3_object_version, function.s3_key, page),)
    name, page = _commit_page(function.source.git, function.source.ref)
    return (Version(function.source.ref, name, page),)


def _commit_page(remote: str, ref: str) -> tuple[str, str]:
    """Returns the name of a repository and the page of a commit, if its host has such pages."""
    split, scp = urlsplit(remote), _SCP_REMOTE.fullmatch(remote)
    is_url = "://" in remote
    host = (split.hostname or "") if is_url else (scp["host"] if scp else "")
    path = split.path if is_url else (scp["path"] if scp else "")
    if host not in _COMMIT_PAGES:
        return "", ""
    name = path.strip("/").removesuffix(".git")
    return name, f"https://{host}/{name}/{_COMMIT_PAGES[host]}/{quote(ref)}"
