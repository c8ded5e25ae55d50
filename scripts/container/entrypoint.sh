#!/usr/bin/env bash
# Entry point of the images: `docker run IMAGE run h2o.xyz ...` means dfmp2, a program by its name means that program.
set -euo pipefail
case "${1:-}" in
  dfmp2 | python | python3 | bash | sh | /*) exec "$@" ;;
  *) exec dfmp2 "$@" ;;
esac
