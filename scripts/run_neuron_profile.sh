#!/usr/bin/env bash
# Profile the pair kernels on this host's Trainium device: how busy each engine is, beside what the cost model predicts.
#
#   scripts/run_neuron_profile.sh [--shape SHAPE] [--results DIR] [--dry-run]
#
# Compiles the programs of the shape (lane nki), captures one execution of each with neuron-explorer (or neuron-profile,
# its name before SDK 2.31), and prints a table. Profiles (.ntff) and summaries (.json) are kept in DIR.
#
#   --shape SHAPE     small, medium, large or NOCC,NVIR,NAUX (default: medium)
#   --results DIR     default: neuron-results-DATE
#   --dry-run         show the commands
# Exit codes: 0, 1 a profile failed, 2 wrong usage, 6 no device, no packages or no profiler.

set -euo pipefail
START="$PWD"
cd "$(dirname "$0")/.."
# shellcheck source=scripts/neuron_host.sh
source scripts/neuron_host.sh

shape=medium
results=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    --shape) shape="$(value "$@")"; shift 2 ;;
    --results) results="$(value "$@")"; shift 2 ;;
    --dry-run) DRY_RUN=1 && shift ;;
    --help | -h) usage && exit 0 ;;
    *) fail 2 "unknown option $1; see --help" ;;
  esac
done
require_device
[[ "$DRY_RUN" == 1 ]] || prepare_host
profiler=neuron-explorer
if [[ "$DRY_RUN" != 1 ]]; then
  profiler="$(command -v neuron-explorer || command -v neuron-profile)" ||
    fail 6 "neither neuron-explorer nor neuron-profile is on PATH: install aws-neuronx-tools"
fi
results="$(results_folder "$results")"
run "$PYTHON" -m dfmp2 kernels warmup --shape "$shape"
programs=("PROGRAM.neff")
if [[ "$DRY_RUN" != 1 ]]; then
  mapfile -t programs < <("$PYTHON" scripts/profile_table.py --programs "$shape")
  [[ ${#programs[@]} -gt 0 ]] || fail 1 "no compiled program for $shape was found in the cache"
fi
number=0
for program in "${programs[@]}"; do
  number=$((number + 1))
  # The second execution: the first also loads.
  run "$profiler" capture -n "$program" -s "$results/profile-$number.ntff" --profile-nth-exec=2
  trace="$results/profile-$number.ntff"
  if [[ "$DRY_RUN" != 1 && ! -f "$trace" ]]; then # some releases add the execution to the name
    trace="$(find "$results" -name "profile-${number}*.ntff" | sort | head -1)"
    [[ -n "$trace" ]] || fail 1 "$profiler left no profile of $program"
  fi
  if [[ "$DRY_RUN" == 1 ]]; then
    run "$profiler" view -n "$program" -s "$trace" --output-format summary-json
  else
    "$profiler" view -n "$program" -s "$trace" --output-format summary-json >"$results/profile-$number.json"
  fi
done
run "$PYTHON" scripts/profile_table.py --shape "$shape" "$results"/profile-*.json
