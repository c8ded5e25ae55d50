#!/usr/bin/env bash
# Exercise the torch-xla lane on this host's CPU (PJRT_DEVICE=CPU), without Trainium.
#
#   scripts/run_xla_tests.sh [--folder DIR] [--python PYTHON] [--dry-run] [-- PYTEST ARGUMENTS]
#
# Makes a virtual environment with the extra `xla`, torch 2.9.0 and torch-xla 2.9.0 (7.5 GB, about two minutes) in DIR, or in a
# temporary folder that is removed at the end, and runs the tests marked `xla` in it. A DIR is kept and used again.
# The plain K3 kernel is replaced by a stand-in traced by XLA (lane xla-cpu-twin): this tests residency, graphs
# and transfers of the lane, and says nothing about Trainium.
#
#   --folder DIR      where the environment is made or found
#   --python PYTHON   interpreter to make it with: Python 3.11 to 3.13 (default: python3)
#   --dry-run         show the commands
# Exit codes: 0, 1 a test failed, 2 wrong usage, 7 no room.

set -euo pipefail
START="$PWD"
cd "$(dirname "$0")/.."
# shellcheck source=scripts/neuron_host.sh
source scripts/neuron_host.sh

NEEDED_KB=9000000
folder=""
python="${PYTHON:-python3}"
while [[ $# -gt 0 ]]; do
  case "$1" in
    --folder) folder="$(value "$@")"; shift 2 ;;
    --python) python="$(value "$@")"; shift 2 ;;
    --dry-run) DRY_RUN=1 && shift ;;
    --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    *) fail 2 "unknown option $1; see --help" ;;
  esac
done

if [[ -z "$folder" ]]; then
  if [[ "$DRY_RUN" == 1 ]]; then
    folder="${TMPDIR:-/tmp}/dfmp2-xla"
  else
    folder="$(mktemp -d "${TMPDIR:-/tmp}/dfmp2-xla.XXXXXX")"
    trap 'rm -rf "$folder"' EXIT
  fi
fi
folder="$(absolute "$folder")"
case "$folder/" in
  "$PWD"/*) fail 2 "--folder $folder lies in the source tree: name a folder outside it" ;;
esac

environment="$folder/venv"
if [[ ! -x "$environment/bin/python" || ! -f "$folder/ready" ]]; then
  [[ "$DRY_RUN" == 1 ]] || mkdir -p "$folder"
  if [[ "$DRY_RUN" != 1 ]]; then
    room="$(df --output=avail -k "$folder" | tail -1)"
    [[ "$room" -ge "$NEEDED_KB" ]] ||
      fail 7 "$folder has $((room / 1000)) MB free and $((NEEDED_KB / 1000)) MB are needed: name another --folder"
  fi
  run "$python" -m venv --clear "$environment"
  run "$environment/bin/python" -m pip install --quiet --no-cache-dir --editable '.[xla]' pytest hypothesis
  run touch "$folder/ready"
fi
export PJRT_DEVICE=CPU
say "torch-xla on this host's CPU, a stand-in in place of the kernel: this is no Trainium run"
run "$environment/bin/python" -m pytest -m xla --require xla tests/test_nki_xla.py "$@"
