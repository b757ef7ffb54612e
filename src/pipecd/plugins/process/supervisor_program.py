# SPDX-License-Identifier: Apache-2.0
"""Runs the supervisor without OpenSSL, which it has no use for.

asyncio and hashlib load OpenSSL where they find it: 5 MB, a quarter of the memory of a process that
runs all the time, speaks plain HTTP and TCP, and compares files by digests that Python has itself.
"""

import sys

for module in ("ssl", "_hashlib"):
    sys.modules[module] = None  # type: ignore[assignment]

from pipecd.plugins.process.supervisor import main  # noqa: E402 - only from here on.

if __name__ == "__main__":
    sys.exit(main())
