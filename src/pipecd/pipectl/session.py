# SPDX-License-Identifier: Apache-2.0
"""`pipectl session`: list, end."""

from datetime import UTC, datetime

import click

from pipecd.commandline import flags
from pipecd.model.clock import from_unix
from pipecd.model.errors import UserMistake
from pipecd.pipectl.client import Connection, attempt, logger, with_connection
from pipecd.pipectl.output import View, age, output_flag, print_result
from pipecd.proto.service import session_control_pb2 as pb


def _expiry(session: pb.Session) -> str:
    return from_unix(session.expires_at).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


_SESSIONS = View(
    {
        "USER": lambda s: s.username,
        "ROLES": lambda s: ",".join(s.roles),
        "SIGNED IN WITH": lambda s: "single sign-on" if s.sso else "password",
        "AGE": lambda s: age(s.signed_in_at, now=datetime.now(UTC)),
        "EXPIRES": _expiry,
        "ID": lambda s: s.id,
    },
    name=lambda s: s.id,
)


@click.group()
def session() -> None:
    """Work with the sessions of users."""


@session.command("list")
@with_connection
@flags.text("username", "Only the sessions of this user.")
@output_flag
async def list_(connection: Connection, username: str, output: str) -> None:
    """List the sessions of the project, the newest first."""
    request = pb.ListSessionsRequest(username=username)
    answer = connection.own_rpc("ListSessions", request, pb.ListSessionsResponse)
    listed = await attempt("list sessions", answer)
    print_result(output, listed, listed.sessions, _SESSIONS)
    if listed.has_more:
        logger.info("There are older sessions; --username lists those of one user")


@session.command("end", short_help="End one session, those of a user, or all.")
@with_connection
@flags.text("session-id", "The session to end.")
@flags.text("username", "End all sessions of this user.")
@flags.switch("all", "End all sessions of the project.")
async def end(connection: Connection, session_id: str, username: str, *, all: bool) -> None:
    """End one session, those of a user, or all; the users may sign in again."""
    if sum(map(bool, (session_id, username, all))) != 1:
        raise UserMistake(
            "it is not clear which sessions to end",
            hint="set one of --session-id, --username and --all",
        )
    if session_id:
        rpc, request = "EndSession", pb.EndSessionRequest(session_id=session_id)
        done = f"Ended session {session_id}"
    elif username:
        rpc, request = "EndUserSessions", pb.EndUserSessionsRequest(username=username)
        done = f"Ended the sessions of {username}"
    else:
        rpc, request = "EndAllSessions", pb.EndAllSessionsRequest()
        done = "Ended all sessions of the project"
    await attempt("end sessions", connection.own_rpc(rpc, request, pb.EndSessionsResponse))
    logger.info(done)
