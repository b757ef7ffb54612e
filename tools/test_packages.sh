#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the system packages that tests need, if this user may; otherwise says which are missing.
set -eu

missing=""
# need PACKAGE PROGRAM...: one of the programs must be there, else the package is missing.
need() {
    package=$1
    shift
    for program in "$@"; do
        if command -v "$program" >/dev/null 2>&1; then return; fi
    done
    missing="$missing $package"
}
PATH=$PATH:/usr/sbin
need git git
need "gcc libc6-dev" gcc
need git-lfs git-lfs
need chromium chromium
need mariadb-server mariadbd
need postgresql postgres /usr/lib/postgresql/*/bin/postgres
need redis-server redis-server
need prometheus prometheus
need openssh-server sshd
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing for the tests:$missing (install them with the system's package tool; what needs them is skipped without them)" >&2
    exit 0
fi

echo "installing for the tests:$missing"
# Tests start their own servers: no service of the system is started by being installed.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
