# SPDX-License-Identifier: Apache-2.0
"""Runs a plugin without a piped and without its platform, for the tests of its author.

bench = StageBench(Greet(), tmp_path)
result = await bench.run("GREET", {"name": "Ann"})
assert bench.host.lines == ["Hello Ann"]
"""

from pipecd.sdk.testing.bench import StageBench
from pipecd.sdk.testing.host import MemoryHost

__all__ = ["MemoryHost", "StageBench"]
