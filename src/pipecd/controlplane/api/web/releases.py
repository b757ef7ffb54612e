# SPDX-License-Identifier: Apache-2.0
"""Which versions of piped there are, without asking anybody on the network."""

from pipecd.controlplane.auth.subject import User
from pipecd.observe.version import build_version
from pipecd.proto.service import web_pb2 as pb


class ReleaseRpcs:
    """The RPCs about releases: a control plane knows the one that it was built with."""

    async def ListReleasedVersions(
        self, _request: pb.ListReleasedVersionsRequest, _caller: User
    ) -> pb.ListReleasedVersionsResponse:
        version = build_version()
        # A program that was not installed from a package has no version to offer.
        return pb.ListReleasedVersionsResponse(versions=[version] if version[:1] == "v" else [])

    async def ListDeprecatedNotes(
        self, _request: pb.ListDeprecatedNotesRequest, _caller: User
    ) -> pb.ListDeprecatedNotesResponse:
        return pb.ListDeprecatedNotesResponse()
