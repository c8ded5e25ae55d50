#!/usr/bin/env bash
# Time the pair step on this host's Trainium device: cold, in a fresh process, warm; and PyTorch on the same host.
#
#   scripts/bench_neuron.sh [--lane nki|nki-xla] [--shapes medium,large] [--repeats N] [--json FILE] [--dry-run]
#
# cold: nothing compiled; fresh process: compiled, but not loaded; warm: the second and later runs of a process. The
# energies must equal the known ones. Prints a table beside the predicted times and writes all numbers to FILE.
#
#   --lane LANE       nki (compiled programs, default) or nki-xla (torch-xla)
#   --shapes LIST     small, medium, large or NOCC/NVIR/NAUX, with commas (default: medium,large)
#   --repeats N       warm runs (default: 5)
#   --json FILE       default: neuron-benchmark.json
#   --dry-run         show the commands and the predictions
# Exit codes: 0, 2 wrong usage, 6 no device or no packages, 8 an energy is wrong.

set -euo pipefail
START="$PWD"
cd "$(dirname "$0")/.."
# shellcheck source=scripts/neuron_host.sh
source scripts/neuron_host.sh

lane=nki
shapes=medium,large
repeats=5
json=neuron-benchmark.json
while [[ $# -gt 0 ]]; do
  case "$1" in
    --lane) lane="$(value "$@")"; shift 2 ;;
    --shapes) shapes="$(value "$@")"; shift 2 ;;
    --repeats) repeats="$(value "$@")"; shift 2 ;;
    --json) json="$(value "$@")"; shift 2 ;;
    --dry-run) DRY_RUN=1 && shift ;;
    --help | -h) usage && exit 0 ;;
    *) fail 2 "unknown option $1; see --help" ;;
  esac
done
[[ "$lane" == nki || "$lane" == nki-xla ]] || fail 2 "--lane $lane: expected nki or nki-xla"
require_device
prepare_host
has_dfmp2 # also for the predictions
arguments=(--lane "$lane" --shapes "$shapes" --repeats "$repeats" --json "$(absolute "$json")")
[[ "$DRY_RUN" == 1 ]] && arguments+=(--dry-run)
exec "$PYTHON" scripts/neuron_benchmark.py "${arguments[@]}"
