#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the system packages that tests need, if this user may; otherwise says which are missing.
set -eu

missing=""
command -v git >/dev/null 2>&1 || missing="$missing git"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v mariadbd >/dev/null 2>&1 || [ -x /usr/sbin/mariadbd ] || missing="$missing mariadb-server"
command -v postgres >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing for the tests:$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
    exit 0
fi
echo "missing for the tests:$missing (install them with the system's package tool; what needs them is skipped without them)" >&2
