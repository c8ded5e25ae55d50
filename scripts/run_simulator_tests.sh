#!/usr/bin/env bash
# Run the kernels in AWS's own simulator (nki.simulate) on this host; no device is needed.
#
#   scripts/run_simulator_tests.sh [--install DIR] [--python PYTHON] [--dry-run] [-- PYTEST ARGUMENTS]
#
# Needs AWS's package nki 0.3.0 to 0.7.0 beside dfmp2. PyPI's nki is a placeholder; the real one comes from AWS's own
# index, whose address is in the Neuron setup guide.
#
#   --install DIR     first make a virtual environment in DIR with nki from the index in $NEURON_PIP_INDEX
#   --python PYTHON   interpreter that has dfmp2 and nki (default: $PYTHON, else python3)
#   --dry-run         show the commands
# A skipped test counts as failed. Exit codes: 0, 1 a test failed, 2 wrong usage, 6 no nki.

set -euo pipefail
START="$PWD"
cd "$(dirname "$0")/.."
# shellcheck source=scripts/neuron_host.sh
source scripts/neuron_host.sh

place=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    --install) place="$(value "$@")"; shift 2 ;;
    --python) PYTHON="$(value "$@")"; shift 2 ;;
    --dry-run) DRY_RUN=1 && shift ;;
    --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    *) fail 2 "unknown option $1; see --help" ;;
  esac
done

if [[ -n "$place" ]]; then
  [[ -n "${NEURON_PIP_INDEX:-}" || "$DRY_RUN" == 1 ]] ||
    fail 6 "--install needs NEURON_PIP_INDEX, the address of AWS's package index (Neuron setup guide)"
  place="$(absolute "$place")"
  case "$place/" in
    "$PWD"/*) fail 2 "--install $place lies in the source tree: name a folder outside it" ;;
  esac
  run "$PYTHON" -m venv --clear "$place"
  PYTHON="$place/bin/python"
  # nki from AWS's index alone, since PyPI has a placeholder of that name; what it depends on from both.
  run "$PYTHON" -m pip install --quiet --index-url "${NEURON_PIP_INDEX:-NEURON_PIP_INDEX}" --no-deps nki
  run "$PYTHON" -m pip install --quiet --extra-index-url "${NEURON_PIP_INDEX:-NEURON_PIP_INDEX}" nki
  run "$PYTHON" -m pip install --quiet --editable '.[test]' --constraint constraints.txt
fi
[[ "$DRY_RUN" == 1 ]] || prepare_host
require_dfmp2
if [[ "$DRY_RUN" != 1 ]]; then
  reason="$("$PYTHON" -c 'from dfmp2.trainium.entry import refusal; print(refusal("nki-simulator") or "")')"
  [[ -z "$reason" ]] || fail 6 "the simulator cannot be used: $reason"
fi
export NEURON_PLATFORM_TARGET_OVERRIDE=trn1 # the simulator models trn3 otherwise
run "$PYTHON" -m dfmp2 kernels check --lane nki-simulator
run "$PYTHON" -m pytest -m nki_simulator --require nki_simulator tests/test_nki_on_lanes.py "$@"
