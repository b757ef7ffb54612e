# SPDX-License-Identifier: Apache-2.0
"""How cost grows with the size of an installation, beside the limits of this machine.

Each section prints figures next to their targets and returns curves, which `--pictures` writes as
SVG files. What the machine can do at best is measured in the same run: a gRPC server that does
nothing, `git fetch`, single INSERTs, programs in a loop.
"""

import argparse
import asyncio
import os
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import many
from lists import list_queries, timed
from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from piped_calls import CONNECTIONS, baseline_rate, drive
from rig.baseline import baseline_server
from rig.control_plane import free_ports, run_control_plane
from rig.cpu_time import Taken, cpu_clock
from rig.curve import Curve, draw
from rig.engines import NotInstalled, engine, rows_milliseconds
from rig.fleet_cluster import NEW_OBJECTS, measure_cluster
from rig.fleet_history import measure_pages, seconds_to_parse, write_insights
from rig.fleet_logs import FLOOD_LINES, FLOODING, measure_intake, measure_logs
from rig.fleet_pipeds import connect_all, seed_fleet
from rig.grpc_client import GrpcClient
from rig.history import Scale
from rig.kept import filled_database
from rig.piped import git
from rig.seed import RegisteredPiped, seed_pipeds

PUSH_SIZES, PUSH_SECONDS, PUSH_MEMORY = (100, 200, 500, 1000), 30, 350
HISTORY_SIZES, LIST_MS, PAGE_MS, INSIGHT_SECONDS = (50_000, 200_000, 1_000_000), 100, 150, 1
FLEET_SIZES, FLEET_SECONDS, FLEET_MEMORY = (250, 500, 1000, 2000), 10, 400
LOG_SIZES, LOG_LAG_SECONDS = (10, 50, 100), 1
CLUSTER_SIZES, FIRST_SYNC_SECONDS = (1000, 4000, 10_000), 1
# What a deployment of the push costs at least: its calls, its documents, its program.
CALLS_PER_DEPLOYMENT = 15

Points = list[tuple[float, float]]


def measure_push(sizes: Sequence[int]) -> Iterator[Curve]:
    """One push that changes every application of one piped."""
    seconds, cpu, server_cpu, limit = Points(), Points(), Points(), Points()
    for size in sizes:
        with many.run_push_installation(size) as (running, server, repository, database):
            many.wait_for_success(database, running, size)
            piped_before, server_before = running.cpu_seconds(), server.cpu_seconds()
            many.commit(repository, size, "second")
            taken, _ = many.wait_for_success(database, running, 2 * size)
            used = running.cpu_seconds() - piped_before
            used_by_server = server.cpu_seconds() - server_before
            resident = running.memory()
            least = _least_seconds(repository, size)
        seconds.append((size, taken))
        cpu.append((size, used / size * 1000))
        server_cpu.append((size, used_by_server / size * 1000))
        limit.append((size, least))
        print(
            f"push to {size:5} applications {taken:8.1f} s    (target for 1,000: {PUSH_SECONDS}); "
            f"its parts one after the other {least:.1f} s; CPU time each: piped "
            f"{used / size * 1000:.0f} ms, control plane {used_by_server / size * 1000:.0f} ms; "
            f"piped {resident:.0f} MB (target {PUSH_MEMORY})",
            flush=True,
        )
    lines = {"all SUCCESS": seconds, "its parts one after the other": limit}
    yield Curve(
        "push",
        "A push that changes every application of one piped",
        "applications",
        "seconds until all succeeded",
        lines,
        {f"{PUSH_SECONDS} s": PUSH_SECONDS},
    )
    yield Curve(
        "push-cpu",
        "CPU time of one deployment in that push",
        "applications",
        "milliseconds for each",
        {"piped with its programs": cpu, "control plane": server_cpu},
    )


def _least_seconds(repository: Path, size: int) -> float:
    """What the parts of such a push take on this machine without PipeCD, one after the other.

    The fetch of the commit, then for each application: calls to a server that does nothing, one
    INSERT per call, and the program of its stage.
    """
    with tempfile.TemporaryDirectory() as directory:
        with engine("sqlite") as datastore:
            pipeds = seed_pipeds(datastore, pipeds=CONNECTIONS)
        began = time.monotonic()
        git(Path(directory), "clone", "--quiet", "--bare", f"file://{repository}", "fetched")
        fetched = time.monotonic() - began
        with baseline_server() as address:
            drive(address, pipeds, 0.3)
            began = time.monotonic()
            rate = len(drive(address, pipeds, 1.0)) / (time.monotonic() - began)
        inserts = insert_rate(Path(directory) / "plain.db")
        began = time.monotonic()
        count = min(size, 100)
        for _ in range(count):
            # As SCRIPT_RUN does.
            subprocess.run(["sh", "-l", "-c", "cat /dev/null"], check=True)
        program = (time.monotonic() - began) / count
    calls = size * CALLS_PER_DEPLOYMENT
    return fetched + calls / rate + calls / inserts + size * program / 2


def insert_rate(path: Path, seconds: float = 1.0) -> float:
    """Returns how many durable INSERTs a second SQLite does, one transaction each."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, data TEXT)")
    began, count = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        connection.execute("INSERT INTO plain (data) VALUES (?)", ("x" * 1500,))
        count += 1
    connection.close()
    return count / (time.monotonic() - began)


def measure_history(
    sizes: Sequence[int], *, kept: Path | None = None, name: str = "sqlite", url: str = ""
) -> Iterator[Curve]:
    """Lists, pages and insights with 10,000 applications and a growing history.

    With a directory to keep them in they are filled once; servers need a `url` for that.
    """
    lists, pages, insights = Points(), Points(), Points()
    scans, parses = Points(), Points()
    for size in sizes:
        scale = Scale(applications=10_000, deployments=size)
        with filled_installation(scale, kept, name, url) as (datastore, files):
            taken = asyncio.run(_measure_lists(datastore, files))
            scan = rows_milliseconds(datastore)
            times = measure_pages(datastore, files)
            parse = seconds_to_parse(files)
        print(f"{size:9,} deployments on {datastore.type}:")
        slowest_list = _print_slowest("list", taken, LIST_MS)
        slowest_page = _print_slowest("page", times.pages, PAGE_MS)
        slowest_insights = _print_slowest("insights", times.insights, INSIGHT_SECONDS * 1000)
        print(
            f"  30 rows by plain SQL {scan:.1f} ms, an empty page {times.nothing.clock:.1f} ms, "
            f"parsing the files of insights {parse * 1000:.0f} ms",
            flush=True,
        )
        lists.append((size, slowest_list.clock))
        pages.append((size, slowest_page.clock))
        insights.append((size, slowest_insights.clock / 1000))
        scans.append((size, scan))
        parses.append((size, parse))
    suffix = "" if name == "sqlite" else f"-{name}"
    engine_name = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mariadb": "MariaDB"}[name]
    yield Curve(
        f"history{suffix}",
        f"Lists and pages with 10,000 applications on {engine_name}",
        "deployments",
        "milliseconds, the slowest of all",
        {"lists": lists, "pages": pages, "30 rows by plain SQL": scans},
        {f"list {LIST_MS} ms": LIST_MS, f"page {PAGE_MS} ms": PAGE_MS},
    )
    yield Curve(
        f"insights{suffix}",
        "The page of insights of a year, the slowest filter",
        "deployments",
        "seconds",
        {"page with four charts": insights, "reading and parsing its files": parses},
        {f"{INSIGHT_SECONDS} s": INSIGHT_SECONDS},
    )


def _print_slowest(what: str, taken: Mapping[str, Taken], target: float) -> Taken:
    """Prints the slowest and all above the target; returns the slowest times."""
    slowest = Taken(*(max(times) for times in zip(*taken.values(), strict=True)))
    by_cpu = sorted(taken, key=lambda each: taken[each].cpu, reverse=True)
    slow = [each for each in by_cpu if max(taken[each]) > target]
    print(
        f"  slowest {what}: CPU time {slowest.cpu:.0f} ms, by the clock {slowest.clock:.0f} ms "
        f"(target {target:.0f}); {len(slow)} of {len(taken)} above"
    )
    for each in slow or by_cpu[:1]:
        print(f"    {taken[each].cpu:6.0f} ms {taken[each].clock:6.0f} ms  {each}")
    return slowest


@contextmanager
def filled_installation(
    scale: Scale, kept: Path | None, name: str, url: str
) -> Iterator[tuple[DatastoreSpec, Path]]:
    """Yields a database with a history and the directory of its insight files."""
    with filled_database(name, scale, kept, url) as (datastore, directory):
        files = directory / "files"
        if not files.exists():
            began = time.monotonic()
            asyncio.run(write_insights(scale, files))
            print(f"insight files in {time.monotonic() - began:.0f} s", flush=True)
        yield datastore, files


async def _measure_lists(datastore: DatastoreSpec, files: Path) -> dict[str, Taken]:
    async with open_datastore(datastore) as database:
        stores = create_stores(database, await LocalFiles.open(files), MemoryCache())
        # As the job of a control plane does.
        await stores.deployments.pack_history()
        page = PageRequest(size=30)
        clock = cpu_clock(datastore)
        return {
            name: await timed(lambda q=query: q(page), clock)
            for name, query in list_queries(stores)
        }


def measure_fleet(sizes: Sequence[int]) -> Iterator[Curve]:
    """Pipeds on their wake-up streams, and all of them after a restart of the control plane."""
    seconds, bare, memory = Points(), Points(), Points()
    for size in sizes:
        with engine("sqlite") as datastore:
            pipeds, ports = seed_fleet(datastore, size), free_ports()
            with run_control_plane(datastore, ports) as server:
                first = connect_all(server.address("piped-api"), pipeds)
                time.sleep(3)
                resident = server.memory()
                close_all(first.clients)
            with run_control_plane(datastore, ports) as server:
                again = connect_all(server.address("piped-api"), pipeds)
                resident = max(resident, server.memory())
                close_all(again.clients)
        with baseline_server() as address:
            least = connect_all(address, pipeds)
            close_all(least.clients)
        seconds.append((size, again.seconds))
        bare.append((size, least.seconds))
        memory.append((size, resident))
        print(
            f"{size:5} pipeds: {resident:.0f} MB (target for 2,000: {FLEET_MEMORY}); after a "
            f"restart all served in {again.seconds:.1f} s (target {FLEET_SECONDS}), "
            f"{again.errors} errors; a bare server takes {least.seconds:.1f} s",
            flush=True,
        )
    yield Curve(
        "reconnect",
        "All pipeds reconnect to a restarted control plane",
        "pipeds",
        "seconds until the last one is served",
        {"control plane": seconds, "a gRPC server that does nothing": bare},
        {f"{FLEET_SECONDS} s": FLEET_SECONDS},
    )
    yield Curve(
        "fleet-memory",
        "Memory of the control plane with pipeds on wake-up streams",
        "pipeds",
        "MB",
        {"resident": memory},
        {f"{FLEET_MEMORY} MB": FLEET_MEMORY},
    )


def close_all(clients: Sequence[GrpcClient]) -> None:
    for client in clients:
        client.close()


def measure_streaming(sizes: Sequence[int]) -> Iterator[Curve]:
    """Deployments of one piped that stream their logs at the same time."""
    lags, worst = Points(), Points()
    for size in sizes:
        measured = measure_logs(size)
        lags.append((size, measured.median))
        worst.append((size, measured.p99))
        print(
            f"{size:4} deployments with logs: lag {measured.median:.2f} s, p99 "
            f"{measured.p99:.2f} s (target {LOG_LAG_SECONDS}); {measured.lines} lines, "
            f"{measured.rate:.0f} a second, {measured.lost} lost",
            flush=True,
        )
    intake = measure_intake()
    with tempfile.TemporaryDirectory() as directory:
        inserts = insert_rate(Path(directory) / "plain.db")
    print(
        f"{FLOODING} deployments that print {FLOOD_LINES} lines at once: {intake.rate:.0f} lines a "
        f"second, {intake.lost} lost; CPU time: piped {intake.piped_cpu:.1f} s, control plane "
        f"{intake.server_cpu:.1f} s; single INSERTs {inserts:.0f} a second",
        flush=True,
    )
    yield Curve(
        "logs",
        "Deployments of one piped that stream logs at the same time",
        "deployments",
        "seconds from a line to the control plane",
        {"median": lags, "99th percentile": worst},
        {f"{LOG_LAG_SECONDS} s": LOG_LAG_SECONDS},
    )


def measure_replicas(sizes: Sequence[int]) -> Iterator[Curve]:
    """Calls of pipeds to one and two replicas of a control plane on one PostgreSQL."""
    del sizes
    try:
        with engine("postgres") as datastore:
            pipeds = seed_pipeds(datastore, pipeds=2 * CONNECTIONS)
            bare, rates = baseline_rate(pipeds[:CONNECTIONS]), list[float]()
            with run_control_plane(datastore) as first:
                rates.append(_rate([first.address("piped-api")], pipeds))
                with run_control_plane(datastore) as second:
                    both = [first.address("piped-api"), second.address("piped-api")]
                    rates.append(_rate(both, pipeds))
    except NotInstalled as e:
        print(e)
        return
    print(
        f"one replica {rates[0]:.0f} calls a second, two {rates[1]:.0f} "
        f"({rates[1] / rates[0]:.2f} times as many on {os.cpu_count()} processors that they share "
        f"with the database and the client; a bare server: {bare:.0f})",
        flush=True,
    )
    lines = {"calls a second": [(1.0, rates[0]), (2.0, rates[1])]}
    yield Curve("replicas", "Replicas on one PostgreSQL", "replicas", "calls a second", lines)


def _rate(
    addresses: Sequence[str], pipeds: Sequence[RegisteredPiped], seconds: float = 4.0
) -> float:
    """Returns the calls per second of all replicas, each driven by a process of its own."""
    share = len(pipeds) // len(addresses)
    readers: list[tuple[int, int]] = []
    for number, address in enumerate(addresses):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            count = len(
                drive(address, list(pipeds[number * share : (number + 1) * share]), seconds)
            )
            os.write(writing, str(count).encode())
            os._exit(0)
        os.close(writing)
        readers.append((child, reading))
    counts: list[int] = []
    for child, reading in readers:
        os.waitpid(child, 0)
        counts.append(int(os.read(reading, 64)))
        os.close(reading)
    return sum(counts) / seconds


def measure_clusters(sizes: Sequence[int]) -> Iterator[Curve]:
    """A piped beside a cluster whose objects change all the time."""
    cpu, memory, delays = Points(), Points(), Points()
    syncs, loops = Points(), Points()
    for size in sizes:
        with tempfile.TemporaryDirectory() as directory:
            try:
                measured = measure_cluster(size, Path(directory))
            except NotInstalled as e:
                print(e)
                return
        cpu.append((size, measured.cpu_percent))
        memory.append((size, measured.memory))
        delays.append((size, measured.delay))
        loop = NEW_OBJECTS / measured.applied_per_second
        syncs.append((size, measured.first_sync))
        loops.append((size, loop))
        print(
            f"{size:6} objects, {measured.changes_per_second:.0f} changes a second: piped uses "
            f"{measured.cpu_percent:.0f} % of a core and {measured.memory:.0f} MB, drift reported "
            f"after {measured.delay:.2f} s; first sync of {NEW_OBJECTS} new objects "
            f"{measured.first_sync:.2f} s (target {FIRST_SYNC_SECONDS}), server-side apply from a "
            f"loop {loop:.2f} s",
            flush=True,
        )
    yield Curve(
        "cluster",
        "Piped beside a cluster with 200 changes a second",
        "objects",
        "% of a core, MB",
        {"CPU in %": cpu, "memory in MB": memory},
    )
    yield Curve(
        "cluster-delay",
        "From a deleted object to OUT_OF_SYNC in the control plane",
        "objects",
        "seconds",
        {"with 200 changes a second": delays},
    )
    yield Curve(
        "cluster-sync",
        f"The first sync of {NEW_OBJECTS} new objects",
        "other objects in the cluster",
        "seconds",
        {"sync": syncs, "server-side apply from a loop": loops},
        {f"{FIRST_SYNC_SECONDS} s": FIRST_SYNC_SECONDS},
    )


SECTIONS: dict[str, tuple[Callable[[Sequence[int]], Iterator[Curve]], Sequence[int]]] = {
    "push": (measure_push, PUSH_SIZES),
    "fleet": (measure_fleet, FLEET_SIZES),
    "logs": (measure_streaming, LOG_SIZES),
    "replicas": (measure_replicas, ()),
    "cluster": (measure_clusters, CLUSTER_SIZES),
    "history": (measure_history, HISTORY_SIZES),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    parser.add_argument("--sizes", default="", help="other sizes for the selected section")
    parser.add_argument("--pictures", type=Path, help="a directory for the curves")
    parser.add_argument(
        "--kept",
        type=Path,
        help="a directory in which the section history keeps what it has filled",
    )
    parser.add_argument(
        "--postgres", default="", help="URL of a PostgreSQL server for the section history"
    )
    parser.add_argument("--mysql", default="", help="the same, as root@tcp(127.0.0.1:3306)")
    options = parser.parse_args()
    for name in options.only.split(","):
        sizes = SECTIONS[name][1]
        if options.sizes:
            sizes = tuple(int(size) for size in options.sizes.split(","))
        print(f"-- {name}, load of the machine before: {os.getloadavg()[0]:.1f}", flush=True)
        if name == "history":
            servers = {"postgres": options.postgres, "mariadb": options.mysql}
            engine_name, url = next((each for each in servers.items() if each[1]), ("sqlite", ""))
            curves = measure_history(sizes, kept=options.kept, name=engine_name, url=url)
        else:
            curves = SECTIONS[name][0](sizes)
        for curve in curves:
            if options.pictures:
                options.pictures.mkdir(parents=True, exist_ok=True)
                (options.pictures / f"{curve.name}.svg").write_text(draw(curve))


if __name__ == "__main__":
    main()
