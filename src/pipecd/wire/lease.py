# SPDX-License-Identifier: Apache-2.0
"""The lease of a piped on the wire: its epoch in metadata, and the error of its loss."""

from pipecd.model.clock import from_unix
from pipecd.model.count import parse_count
from pipecd.model.errors import LeaseLost, UserMistake
from pipecd.proto.service.lease_pb2 import PipedInstance
from pipecd.wire.credentials import Metadata

# Every request of the holder of a lease carries its epoch; those of upstream's pipeds have none.
EPOCH = "pipecd-epoch"


def parse_epoch(metadata: Metadata) -> int:
    """Reads the epoch of a request; 0 if it carries none."""
    for name, value in metadata:
        if name == EPOCH:
            text = value if isinstance(value, str) else value.decode("latin-1")
            epoch = parse_count(text)
            if epoch is None:
                raise UserMistake(f"the metadata {EPOCH} is not a number")
            return epoch
    return 0


def lease_lost(piped_id: str, other: PipedInstance) -> LeaseLost:
    """Returns the error of a process that has lost the lease to another one.

    Without an id, the other one has ended in the meantime.
    """
    at = from_unix(other.started_at)
    started = f"on host {other.host or 'unknown'} at {at:%Y-%m-%d %H:%M:%S} UTC"
    if not other.id:
        return LeaseLost(
            f"{LeaseLost.PREFIX}{piped_id} had started {started} and has ended, this one has lost "
            "its lease and ends"
        )
    return LeaseLost(f"{LeaseLost.PREFIX}{piped_id} has started {started}, this one ends")
