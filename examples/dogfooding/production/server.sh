#!/bin/sh
# Runs the release that the file "version" names. A commit that changes that file is an upgrade.
set -eu
exec "/opt/pipecd/$(cat version)/bin/pipecd" server \
  --config-file "/etc/pipecd/$1.yaml" --encryption-key-file "/etc/pipecd/$1-encryption-key" \
  --host 127.0.0.1 --port "$PORT" --insecure-cookie --grace-period 5s \
  --piped-api-port 0 --web-api-port 0 --http-port 0 --api-port 0 --admin-port 0 --envoy-authz-port 0
