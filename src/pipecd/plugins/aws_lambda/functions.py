# SPDX-License-Identifier: Apache-2.0
"""The operations on functions of one AWS account, each of which ends when AWS has finished it."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.aws_lambda.config import LambdaFunction
from pipecd.plugins.aws_lambda.manifest import (
    architectures,
    code,
    configuration,
    has_configuration,
    package_type,
)
from pipecd.plugins.aws_lambda.traffic import ALIAS, Traffic
from pipecd.sdk import Duration, PipecdError, Unavailable, UserMistake
from pipecd.sdk.aws import AwsAccount, AwsMissing, AwsRejection, Polling
from pipecd.sdk.unstructured import map_at, text_at

# Another change is in progress, or what is created exists already.
_CONFLICT = "ResourceConflictException"
_RESERVED_TAGS = "aws:"


class UpdateFailed(PipecdError):
    """AWS could not carry out a change of a function."""


@dataclass(frozen=True)
class Functions:
    """Functions of an account; `log` gets what happens to them."""

    account: AwsAccount
    polling: Polling
    log: Callable[[str], None]

    async def find(self, name: str) -> Mapping[str, Any] | None:
        """Returns a function with its tags, or None."""
        try:
            return await self._call("get_function", name, FunctionName=name)
        except AwsMissing:
            return None

    async def last_modified(self, name: str) -> str:
        """Returns when the code or the configuration of a function was changed."""
        live = await self.find(name)
        return text_at(live, "Configuration", "LastModified")

    async def apply(
        self,
        function: LambdaFunction,
        package: bytes | None,
        tags: Mapping[str, str],
        *,
        replaced: LambdaFunction | None,
    ) -> None:
        """Creates a function, or changes its configuration, code and tags.

        `replaced` is the manifest of the commit that was deployed before, if there is one.
        """
        live = await self.find(function.name)
        if live is None:
            live = await self._create(function, package, tags)
        if live is not None:
            await self._update(function, package, live, replaced)
            await self._change_tags(live, tags)

    async def publish(self, name: str) -> str:
        """Publishes the code and configuration as a version; an unchanged one is the same again."""
        published = await self._when_idle("publish_version", name, FunctionName=name)
        version = text_at(published, "Version")
        await self._wait(name, Qualifier=version)
        self.log(f"Published version {version} of function {name}")
        return version

    async def traffic(self, name: str) -> Traffic | None:
        """Returns how the alias distributes the traffic, or None without one."""
        try:
            alias = await self._call("get_alias", name, FunctionName=name, Name=ALIAS)
        except AwsMissing:
            return None
        return Traffic.of_alias(alias)

    async def route(self, name: str, traffic: Traffic) -> None:
        """Distributes the traffic; creates the alias if it does not exist."""
        parameters = {"FunctionName": name, "Name": ALIAS, **traffic.parameters()}
        operation = "create_alias" if await self.traffic(name) is None else "update_alias"
        await self._call(operation, name, **parameters)
        self.log(f"The traffic of function {name} goes to {traffic}")

    async def _create(
        self, function: LambdaFunction, package: bytes | None, tags: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Creates a function; returns the one that somebody else has created meanwhile."""
        try:
            await self._call(
                "create_function",
                function.name,
                FunctionName=function.name,
                PackageType=package_type(function),
                Code=code(function, package),
                Tags=dict(tags),
                **architectures(function),
                **configuration(function),
            )
        except AwsRejection as e:
            if e.code != _CONFLICT:
                raise
            return await self.find(function.name)
        self.log(f"Created function {function.name}")
        await self._wait(function.name)
        return None

    async def _update(
        self,
        function: LambdaFunction,
        package: bytes | None,
        live: Mapping[str, Any],
        replaced: LambdaFunction | None,
    ) -> None:
        name = function.name
        packed = text_at(live, "Configuration", "PackageType") or package_type(function)
        if packed != package_type(function):
            raise UserMistake(
                f"function {name} exists with the package type {packed}, which cannot be changed "
                f"to {package_type(function)}",
                hint="give the function another name, or delete the old one first",
            )
        # Another change may be in progress, and what was read before it has ended does not count.
        shown = await self._wait(name, accepts_failure=True)
        # What AWS shows after a failure is not what it runs.
        has_failed = "Failed" in (text_at(shown, "State"), text_at(shown, "LastUpdateStatus"))
        wanted = configuration(function, replaced=replaced)
        if has_failed or not has_configuration(shown, wanted):
            await self._when_idle(
                "update_function_configuration", name, FunctionName=name, **wanted
            )
            await self._wait(name)
            self.log(f"Updated the configuration of function {name}")
        instruction_sets = architectures(function, replaced=replaced)
        if not has_failed and _has_code(shown, package, instruction_sets):
            self.log(f"The code of function {name} is unchanged")
            return
        await self._when_idle(
            "update_function_code",
            name,
            FunctionName=name,
            **code(function, package),
            **instruction_sets,
        )
        await self._wait(name)
        self.log(f"Updated the code of function {name}")

    async def _change_tags(self, live: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        arn = text_at(live, "Configuration", "FunctionArn")
        current = map_at(live, "Tags")
        added = {key: value for key, value in tags.items() if current.get(key) != value}
        removed = [k for k in current if k not in tags and not k.startswith(_RESERVED_TAGS)]
        if added:
            await self._call("tag_resource", arn, Resource=arn, Tags=added)
        if removed:
            await self._call("untag_resource", arn, Resource=arn, TagKeys=removed)

    async def _when_idle(
        self, operation: str, name: str, **parameters: object
    ) -> Mapping[str, Any]:
        """Calls an operation as soon as no other change of the function is in progress."""
        refusal: list[AwsRejection] = []

        async def call() -> Mapping[str, Any] | None:
            try:
                return await self._call(operation, name, **parameters)
            except AwsRejection as e:
                if e.code != _CONFLICT:
                    raise
                if not refusal:
                    self.log(f"Waiting, since another change of function {name} is in progress")
                refusal.append(e)
                return None

        result = await self.polling.until(call)
        if result is None:
            raise Unavailable(
                f"another change of function {name} is in progress all the time: "
                f"{refusal[-1].message}",
                hint="find out who changes it, and deploy again",
            )
        return result

    async def _wait(
        self, name: str, *, accepts_failure: bool = False, **qualifier: str
    ) -> Mapping[str, Any]:
        """Waits until AWS has carried out a change, and returns the configuration then.

        A change that failed before may be accepted.
        """
        version = "".join(f" version {value}" for value in qualifier.values())
        status = ""

        async def check() -> Mapping[str, Any] | None:
            nonlocal status
            shown = await self._call(
                "get_function_configuration", name, FunctionName=name, **qualifier
            )
            state, update = text_at(shown, "State"), text_at(shown, "LastUpdateStatus")
            if "Failed" in (state, update):
                if accepts_failure:
                    return shown
                reasons = (text_at(shown, f"{key}Reason") for key in ("LastUpdateStatus", "State"))
                reason = "; ".join(filter(None, reasons)) or "it gives no reason"
                raise UpdateFailed(
                    f"AWS could not update function {name}{version}: {reason}",
                    hint="correct the function manifest, its role or its code",
                )
            if state in ("", "Active", "Inactive") and update in ("", "Successful"):
                return shown
            if (now := f"{state} {update}") != status:
                status = now
                self.log(f"Waiting for function {name}{version}: {now}")
            return None

        shown = await self.polling.until(check)
        if shown is None:
            raise Unavailable(
                f"function {name}{version} was not updated within "
                f"{Duration(self.polling.within)}: {status}",
                hint="look at the function in the console of Lambda, and deploy again",
            )
        return shown

    async def _call(self, operation: str, name: str, **parameters: object) -> dict[str, Any]:
        return await self.account.call("lambda", operation, about=f"function {name}", **parameters)


def _has_code(
    shown: Mapping[str, Any], package: bytes | None, instruction_sets: Mapping[str, Any]
) -> bool:
    """Reports whether a function has a package already; images and objects of S3 may change."""
    if package is None:
        return False
    digest = base64.b64encode(hashlib.sha256(package).digest()).decode()
    names, current = instruction_sets.get("Architectures"), shown.get("Architectures") or ()
    return text_at(shown, "CodeSha256") == digest and (not names or set(names) == set(current))
