# SPDX-License-Identifier: Apache-2.0
"""`python -m pipecd` is the `pipecd` command."""

from pipecd.cli import main

if __name__ == "__main__":
    main()
