#!/usr/bin/env bash
# Test the kernels on this host's Trainium device; with --everything: tests, probes, profile and benchmark.
#
#   scripts/run_neuron_tests.sh [--everything] [--lane nki|nki-xla] [--results DIR] [--dry-run] [-- PYTEST ARGUMENTS]
#
# First compiles what is needed (minutes), then: dfmp2 doctor; the pair-term contract; the tests marked `neuron` of the
# lane, where a skipped test counts as failed; a molecule against PySCF with DFMP2_REQUIRE_NKI=1, whose report holds the
# proof of what ran. All output is kept in DIR.
#
#   --everything      go on with probe_neuron.py, run_neuron_profile.sh and bench_neuron.sh
#   --lane LANE       how kernels are launched: nki (compiled programs, default) or nki-xla (torch-xla)
#   --results DIR     default: neuron-results-DATE
#   --dry-run         show the commands
# Exit codes: 0, 1 something failed (the summary says what), 2 wrong usage, 6 no device or no packages.

set -euo pipefail
START="$PWD"
cd "$(dirname "$0")/.."
# shellcheck source=scripts/neuron_host.sh
source scripts/neuron_host.sh

lane=nki
results=""
everything=0
while [[ $# -gt 0 ]]; do
  case "$1" in
    --lane) lane="$(value "$@")"; shift 2 ;;
    --results) results="$(value "$@")"; shift 2 ;;
    --everything) everything=1 && shift ;;
    --dry-run) DRY_RUN=1 && shift ;;
    --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    *) fail 2 "unknown option $1; see --help" ;;
  esac
done
[[ "$lane" == nki || "$lane" == nki-xla ]] || fail 2 "--lane $lane: expected nki or nki-xla"
require_device
if [[ "$DRY_RUN" != 1 ]]; then
  prepare_host
  reason="$("$PYTHON" -c "from dfmp2.trainium.entry import refusal; print(refusal('$lane') or '')")"
  [[ -z "$reason" ]] || fail 6 "lane $lane cannot be used: $reason"
fi
results="$(results_folder "$results")"
failed=()

# step NAME COMMAND: run it, keep its output, remember whether it failed, go on.
step() {
  local name="$1"
  shift
  logged "$results/$name.log" "$@" || failed+=("$name")
}

export DFMP2_REQUIRE_NKI=1 # whatever falls back to the host ends with exit code 6
mark="$(marker "$lane")"
step doctor "$PYTHON" -m dfmp2 doctor
step warmup "$PYTHON" -m dfmp2 kernels warmup --lane "$lane" inputs/h2o.xyz --basis cc-pvdz
step contract "$PYTHON" -m dfmp2 kernels check --lane "$lane"
step tests "$PYTHON" -m pytest -m "$mark" --require "$mark" --junitxml "$results/tests.xml" tests/test_nki_on_lanes.py "$@"
step molecule "$PYTHON" -m dfmp2 run inputs/h2o.xyz --basis cc-pvdz --backend "$lane" --check \
  --output "$results/h2o.dfmp2.h5" --overwrite
if [[ "$everything" == 1 ]]; then
  step probes "$PYTHON" scripts/probe_neuron.py --lane "$lane" --json "$results/probes.json"
  if [[ "$lane" == nki ]]; then
    step profile scripts/run_neuron_profile.sh --results "$results"
  else
    say "the profile needs compiled programs and is left out on lane $lane"
  fi
  step benchmark scripts/bench_neuron.sh --lane "$lane" --json "$results/benchmark.json"
fi
if [[ ${#failed[@]} -gt 0 ]]; then
  fail 1 "failed: ${failed[*]}; see $results/*.log"
fi
[[ "$DRY_RUN" == 1 ]] && say "dry run: nothing was run" && exit 0
say "all passed; what was found is in $results"
