#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the system packages that tests need, if this user may; otherwise prints which are missing.
# With the argument `long` also those of the long tests.
# Waits while another process holds the lock of the package tool, and repeats what fails on the network.
set -eu

missing=""
# need PACKAGE PROGRAM...: the package is missing unless one of the programs is installed.
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
if [ "${1:-}" = long ]; then
    need firefox-esr firefox-esr firefox
    need webkit2gtk-driver WebKitWebDriver
    need xvfb Xvfb
    need docker.io dockerd
    need iptables iptables
    docker compose version >/dev/null 2>&1 || need docker-compose docker-compose
fi
need mmdebstrap mmdebstrap
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing for the tests:$missing (install them with the system's package tool; tests that need them are skipped without them)" >&2
    exit 0
fi

echo "installing for the tests:$missing"
# Tests start their own servers: installing a package must not start a service.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive

# apt ARGUMENTS...: runs apt-get, up to five times; the lists and the archive have locks of their own.
apt() {
    attempt=1
    until apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null; do
        [ "$attempt" -lt 5 ] || { echo "apt-get $1 failed $attempt times" >&2; return 1; }
        echo "apt-get $1 failed, retrying in $((attempt * 10)) s" >&2
        sleep $((attempt * 10))
        attempt=$((attempt + 1))
    done
}
apt update
# shellcheck disable=SC2086
apt install -y --no-install-recommends $missing
