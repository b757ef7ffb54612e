# SPDX-License-Identifier: Apache-2.0
"""The shared port, which relays gRPC, compared with the gRPC port for pipeds."""

import argparse
import statistics

from piped_calls import CONNECTIONS, drive
from rig.control_plane import run_control_plane
from rig.engines import engine
from rig.seed import seed_pipeds

PORTS = {"direct port": "piped-api", "shared port": "port"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in PORTS}
    with engine("sqlite") as datastore:
        pipeds = seed_pipeds(datastore, pipeds=CONNECTIONS)
        with run_control_plane(datastore) as server:
            # Alternates between the ports, so that noise of the machine affects both.
            for _ in range(options.rounds):
                for name, port_name in PORTS.items():
                    taken[name] += drive(server.address(port_name), pipeds, options.seconds)
    seconds = options.seconds * options.rounds
    for name, calls in taken.items():
        calls.sort()
        print(
            f"{name:<12} {len(calls) / seconds:8.0f} calls per second, "
            f"p50 {statistics.median(calls) * 1000:6.1f} ms, "
            f"p99 {calls[int(0.99 * len(calls))] * 1000:6.1f} ms"
        )
    direct, shared = (len(taken[name]) for name in PORTS)
    print(f"the shared port handles {shared / direct:.2f} times as many calls")


if __name__ == "__main__":
    main()
