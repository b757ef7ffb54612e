#!/bin/sh
# Stands for what your tool does; the argument is next, live or previous.
set -eu
echo "publishing $SR_TRIGGERED_COMMIT_HASH as $1"
