# SPDX-License-Identifier: Apache-2.0
"""Latency of list pages with a year of history in the tables, for every filter.

Queries frequent, rare and missing values of each filter, both in the store and by the RPCs of
`pipectl` on a server.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.cursor import Position, encode_cursor
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import AlreadyExists
from pipecd.model.ids import new_id
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.common_pb2 import ApplicationKind
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from pipecd.proto.service import api_pb2 as pb
from pipecd.secrets.keys import hash_key, new_api_key
from pipecd.wire.credentials import api_key
from rig.control_plane import run_control_plane
from rig.cpu_time import Taken, cpu_clock
from rig.curve import Curve, draw
from rig.engines import NotInstalled
from rig.grpc_client import GrpcClient, Request, request
from rig.history import (
    BEGINNING,
    LARGE,
    OLD_LABEL,
    OLD_WORD,
    SMALL,
    YEAR,
    Scale,
    commit_hash,
    id_of,
)
from rig.kept import filled_database

TARGET_MS = 100.0
REPEATS = 3
PAGE = 30
CALL = "/grpc.service.apiservice.APIService/ListDeployments"
MIDDLE = Position(id_of("deployment", 0), BEGINNING + YEAR // 2)

RUNNING, ROLLING_BACK = int(DeploymentStatus.RUNNING), int(DeploymentStatus.ROLLING_BACK)
SUCCESS, FAILURE = int(DeploymentStatus.SUCCESS), int(DeploymentStatus.FAILURE)
CANCELLED = int(DeploymentStatus.CANCELLED)
KINDS = tuple(ApplicationKind.values())
UNFINISHED = (int(DeploymentStatus.PENDING), int(DeploymentStatus.PLANNED), RUNNING, ROLLING_BACK)
BUT_SUCCESS = (*UNFINISHED, FAILURE, CANCELLED)
# Kinds that no application has.
NO_KINDS = (2, 6)

ListQuery = tuple[str, Callable[[PageRequest], Awaitable[object]]]

DEPLOYMENT_FILTERS: Mapping[str, Mapping[str, Any]] = {
    "all": {},
    "status SUCCESS": {"statuses": (SUCCESS,)},
    "status RUNNING": {"statuses": (RUNNING,)},
    "status FAILURE or CANCELLED": {"statuses": (FAILURE, CANCELLED)},
    "status ROLLING_BACK (none)": {"statuses": (ROLLING_BACK,)},
    "kind TERRAFORM": {"kinds": (1,)},
    "two kinds": {"kinds": (1, 3)},
    "two kinds, status FAILURE or CANCELLED": {"kinds": (1, 3), "statuses": (FAILURE, CANCELLED)},
    "two kinds, status RUNNING": {"kinds": (1, 2), "statuses": (RUNNING,)},
    "every kind, every status before the end": {"kinds": KINDS, "statuses": UNFINISHED},
    "four kinds, six statuses": {"kinds": KINDS[1:], "statuses": tuple(range(6))},
    "four kinds, every status but SUCCESS": {"kinds": KINDS[1:], "statuses": BUT_SUCCESS},
    "three kinds, one frequent and two rare statuses": {
        "kinds": KINDS[1:4],
        "statuses": (SUCCESS, RUNNING, ROLLING_BACK),
    },
    "four kinds, status SUCCESS": {"kinds": KINDS[:4], "statuses": (SUCCESS,)},
    "four kinds, status RUNNING": {"kinds": KINDS[:4], "statuses": (RUNNING,)},
    "kind TERRAFORM, every status but SUCCESS": {"kinds": (1,), "statuses": BUT_SUCCESS},
    "two kinds of none, six statuses": {"kinds": NO_KINDS, "statuses": tuple(range(6))},
    "every status but SUCCESS": {"statuses": BUT_SUCCESS},
    "every kind, every status": {"kinds": KINDS, "statuses": tuple(map(int, DeploymentStatus))},
    "one application": {"application_ids": (id_of("application", 4321),)},
    "one application, status FAILURE": {
        "application_ids": (id_of("application", 4321),),
        "statuses": (FAILURE,),
    },
    "many applications, four kinds, every status but SUCCESS": {
        "application_ids": tuple(id_of("application", 40 * number) for number in range(100)),
        "kinds": KINDS[1:],
        "statuses": BUT_SUCCESS,
    },
    "name of one": {"application_name": "app-4321"},
    "name of none": {"application_name": "no such"},
    "name of one, three kinds, every status but SUCCESS": {
        "application_name": "app-4321",
        "kinds": KINDS[2:],
        "statuses": BUT_SUCCESS,
    },
    "name of one, kind of another": {"application_name": "app-4321", "kinds": (0,)},
    "trace": {"trace_commit_hash": f"{777:040x}"},
    "trace of none": {"trace_commit_hash": "f" * 40},
    "piped": {"piped_id": id_of("piped", 21)},
    "piped, status ROLLING_BACK (none)": {
        "piped_id": id_of("piped", 21),
        "statuses": (ROLLING_BACK,),
    },
    "piped of none": {"piped_id": id_of("piped", 999)},
    "label of all": {"labels": {"org": "acme"}},
    "label of a third": {"labels": {"env": "prod"}},
    "label of few": {"labels": {"team": "t7"}},
    "label of none": {"labels": {"team": "no such team"}},
    "two labels": {"labels": {"env": "prod", "team": "t7"}},
    "two labels, together of none": {"labels": {"env": "stg", "team": "t2"}},
    "label of few, status RUNNING": {"labels": {"team": "t7"}, "statuses": (RUNNING,)},
    "label of all, status RUNNING": {"labels": {"org": "acme"}, "statuses": (RUNNING,)},
    "label of a third, kind, FAILURE": {
        "labels": {"env": "dev"},
        "kinds": (3,),
        "statuses": (FAILURE,),
    },
    "label of a third, four kinds, six statuses": {
        "labels": {"env": "dev"},
        "kinds": KINDS[1:],
        "statuses": tuple(range(6)),
    },
    "label of a third, eleven months ago": {"labels": OLD_LABEL},
    "label of a third, eleven months ago, FAILURE": {"labels": OLD_LABEL, "statuses": (FAILURE,)},
    "label of a third, eleven months ago, status of none": {
        "labels": OLD_LABEL,
        "statuses": (ROLLING_BACK,),
    },
    "text of all": {"text": "the pipeline"},
    "text of some": {"text": "speed the login"},
    "text of one application": {"text": "APP-4321"},
    "text of eleven months ago": {"text": OLD_WORD},
    "text of eleven months ago, label": {"text": OLD_WORD, "labels": {"env": "dev"}},
    "text of one": {"text": f"(#{777})"},
    "text of none": {"text": "no such text"},
    "text of none, of frequent words": {"text": "payment of the login of the"},
    "text of none, short": {"text": "zq"},
    "text of some, status of none": {"text": "speed the login", "statuses": (ROLLING_BACK,)},
    "text of some, FAILURE": {"text": "speed the login", "statuses": (FAILURE,)},
    "text of eleven months ago, FAILURE": {"text": OLD_WORD, "statuses": (FAILURE,)},
    "text of one application, kind of another": {"text": "app-4321", "kinds": (0,)},
    "text of one application, piped": {"text": "app-4321", "piped_id": id_of("piped", 21)},
    "commit, seven characters": {"text": commit_hash(777)[:7]},
    "commit of none, seven characters": {"text": "0123abc"},
    "commit of none": {"text": "0123abcd" * 5},
    "id": {"text": id_of("deployment", 4321)},
}
APPLICATION_FILTERS = {
    "all": {},
    "disabled": {"enabled": False},
    "kind TERRAFORM": {"kinds": (1,)},
    "out of sync": {"sync_statuses": (3,)},
    "deploying (none)": {"sync_statuses": (2,)},
    "name of one": {"name": "app-4321"},
    "name of none": {"name": "no such"},
    "piped": {"piped_id": id_of("piped", 21)},
    "piped, disabled": {"piped_id": id_of("piped", 21), "enabled": False},
    "label of all": {"labels": {"org": "acme"}},
    "label of few": {"labels": {"team": "t7"}},
    "label of none": {"labels": {"team": "no such team"}},
    "label of few, out of sync": {"labels": {"team": "t3"}, "sync_statuses": (3,)},
}


def list_queries(stores: Stores) -> Iterator[ListQuery]:
    for project in (LARGE, SMALL):
        for name, filters in DEPLOYMENT_FILTERS.items():
            only = DeploymentFilter(project, **filters)  # type: ignore[arg-type]
            yield (
                f"deployments of {project}: {name}",
                lambda page, o=only: stores.deployments.list(o, page),
            )
        for name, filters in APPLICATION_FILTERS.items():
            matching = ApplicationFilter(project, **filters)  # type: ignore[arg-type]
            yield (
                f"applications of {project}: {name}",
                lambda page, m=matching: stores.applications.list(m, page),
            )
    piped = id_of("piped", 21)
    unfinished = DeploymentFilter(LARGE, statuses=UNFINISHED)
    yield "deployments in progress", lambda _: stores.deployments.list(unfinished)
    everything = ApplicationFilter(LARGE)
    yield "applications, all of them", lambda _: stores.applications.list(everything)
    yield "deployments of a piped", lambda _: stores.deployments.list_not_completed(piped)
    yield "applications of a piped", lambda _: stores.applications.list_enabled(LARGE, piped)
    yield "commands of a piped", lambda _: stores.commands.list_unhandled(piped)


def calls(key: str) -> Iterator[tuple[str, Request]]:
    """Yields a call for the first page of every list of deployments that the API supports."""
    for name, filters in DEPLOYMENT_FILTERS.items():
        # No call can query by a trace, a piped or a text, or by a kind that has no name.
        if filters.keys() & {"trace_commit_hash", "piped_id", "text"} or not set(
            filters.get("kinds", ())
        ) <= set(KINDS):
            continue
        # The RPC uses only the first status and the first kind.
        fields: dict[str, Any] = dict(filters)
        if statuses := fields.get("statuses"):
            fields["statuses"] = [f"DEPLOYMENT_{DeploymentStatus(statuses[0]).name}"]
        if kinds := fields.get("kinds"):
            fields["kinds"] = [ApplicationKind.Name(kinds[0])]
        message = pb.ListDeploymentsRequest(limit=PAGE, **fields).SerializeToString()
        yield f"deployments of {LARGE}: {name}, by a call", request(CALL, message, api_key(key))


def measure_calls(datastore: DatastoreSpec, key: str, verbose: bool) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        # With files of its own it collects no insights, which would read the whole history first.
        run_control_plane(datastore, files=Path(directory)) as server,
    ):
        client = GrpcClient(server.address("api"))
        timings: list[tuple[float, str]] = []
        for name, call in calls(key):
            taken: list[float] = []
            # The first call, which verifies the key, is not measured.
            for _ in range(REPEATS + 1):
                began = time.perf_counter()
                client.call(call)
                taken.append(time.perf_counter() - began)
            timings.append((statistics.median(taken[1:]) * 1000, name))
        client.close()
    print_summary(timings, verbose)


async def add_key(stores: Stores) -> str:
    """Adds an API key that can read the large project."""
    id = new_id()
    key = new_api_key(id)
    admin = ProjectStaticUser(username="admin", password_hash="no password")
    with suppress(AlreadyExists):
        await stores.projects.add(Project(id=LARGE, desc="d", static_admin=admin))
    record = APIKey(id=id, name="bench", creator="bench", project_id=LARGE, role=APIKey.READ_ONLY)
    record.key_hash = hash_key(key)
    await stores.api_keys.add(record)
    return key


async def timed(query: Callable[[], Awaitable[object]], cpu_clock: Callable[[], float]) -> Taken:
    """Returns the medians; the first call, which builds and plans the statement, counts too."""
    taken: list[Taken] = []
    for _ in range(REPEATS):
        cpu, began = cpu_clock(), time.perf_counter()
        await query()
        clock = time.perf_counter() - began
        taken.append(Taken((cpu_clock() - cpu) * 1000, clock * 1000))
    return Taken(*(statistics.median(values) for values in zip(*taken, strict=True)))


async def measure(
    stores: Stores, cpu_clock: Callable[[], float], verbose: bool
) -> dict[str, Taken]:
    """Measures every page; returns the worst by CPU time and by the clock."""
    pages = {
        "first page": PageRequest(size=PAGE),
        "of the last month": PageRequest(size=PAGE, min_updated_at=BEGINNING + YEAR * 11 // 12),
        "page in the middle": PageRequest(size=PAGE, cursor=encode_cursor(MIDDLE, "UpdatedAt")),
    }
    timings: dict[str, Taken] = {}
    for name, query in list_queries(stores):
        for which, page in pages.items():
            timings[f"{name}, {which}"] = await timed(lambda a=query, p=page: a(p), cpu_clock)
    print("CPU time of this process and the database:")
    print_summary([(taken.cpu, name) for name, taken in timings.items()], verbose)
    print("by the clock:")
    print_summary([(taken.clock, name) for name, taken in timings.items()], verbose)
    return timings


def print_summary(timings: list[tuple[float, str]], verbose: bool) -> None:
    timings.sort(reverse=True)
    slow = [entry for entry in timings if entry[0] > TARGET_MS]
    for taken, name in timings if verbose else (slow or timings[:3]):
        print(f"{taken:8.1f} ms  {name}")
    slowest = timings[0][0]
    print(
        f"{len(timings)} pages, slowest {slowest:.1f} ms, {slowest / TARGET_MS:.2f} of the "
        f"target, median {statistics.median(t for t, _ in timings):.1f} ms, {len(slow)} too slow"
    )


async def measure_engine(datastore: DatastoreSpec, *, verbose: bool) -> tuple[float, str]:
    """Measures a filled database.

    Returns the CPU time of the slowest list and an API key for the calls that follow.
    """
    with tempfile.TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory))
        began = time.perf_counter()
        async with open_datastore(datastore) as database:
            print(
                f"load {os.getloadavg()[0]:.0f}, opened in {time.perf_counter() - began:.1f} s",
                flush=True,
            )
            stores = create_stores(database, files, MemoryCache())
            began, cpu = time.perf_counter(), cpu_clock(datastore)
            before = cpu()
            packed = await stores.deployments.pack_history()
            print(
                f"packed {packed:,} deployments in {time.perf_counter() - began:.0f} s with "
                f"{cpu() - before:.0f} s of CPU time",
                flush=True,
            )
            taken = await measure(stores, cpu, verbose)
            return max(taken.values()).cpu, await add_key(stores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--applications", type=int, default=10_000)
    parser.add_argument("--deployments", default="200000", help="sizes, by commas")
    parser.add_argument("--engines", default="sqlite,postgres,mariadb")
    parser.add_argument(
        "--verbose", action="store_true", help="print every page, not only the slowest"
    )
    parser.add_argument("--pictures", type=Path, help="a directory for the curve over the sizes")
    parser.add_argument("--kept", type=Path, help="a directory for what need not be filled again")
    parser.add_argument("--postgres", default="", help="URL of a server that keeps its databases")
    parser.add_argument("--mysql", default="", help="the same, as root@tcp(127.0.0.1:3306)")
    options = parser.parse_args()
    urls = {"postgres": options.postgres, "mariadb": options.mysql}
    lines: dict[str, list[tuple[float, float]]] = {}
    for name in options.engines.split(","):
        for deployments in map(int, options.deployments.split(",")):
            print(f"-- {name}, {deployments:,} deployments", flush=True)
            try:
                scale = Scale(options.applications, deployments)
                with filled_database(name, scale, options.kept, urls.get(name, "")) as filled:
                    datastore, _ = filled
                    slowest, key = asyncio.run(measure_engine(datastore, verbose=options.verbose))
                    lines.setdefault(name, []).append((deployments, slowest))
                    measure_calls(datastore, key, options.verbose)
            except NotInstalled as e:
                print(e)
    if options.pictures:
        (options.pictures / "lists.svg").write_text(draw(list_curve(lines)))


def list_curve(lines: Mapping[str, Sequence[tuple[float, float]]]) -> Curve:
    return Curve(
        "lists",
        "The slowest of all lists with 10,000 applications",
        "deployments",
        "milliseconds of CPU time, with those of the database",
        lines,
        {f"{TARGET_MS:.0f} ms": TARGET_MS},
    )


if __name__ == "__main__":
    main()
