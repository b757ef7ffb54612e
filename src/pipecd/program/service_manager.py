# SPDX-License-Identifier: Apache-2.0
"""Tells the service manager that started this process, such as systemd, how it is doing."""

import os
import socket

import structlog

log = structlog.get_logger()
_VARIABLE = "NOTIFY_SOCKET"


def report_ready() -> None:
    """Reports that this process serves; does nothing without a service manager that waits for it.

    This is the protocol of sd_notify(3), for units with `Type=notify`.
    """
    address = os.environ.get(_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    # An `@` stands for the zero byte with which names outside of the file system begin.
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.connect(address)
            connection.sendall(b"READY=1")
    except OSError as e:
        # The variable may be inherited from a program that is started by a service.
        log.warning("the service manager cannot be told that this program is ready", error=str(e))
