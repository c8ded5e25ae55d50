#!/usr/bin/env bash
# Install dfmp2 with the dependencies of its tests and pages into the current interpreter, with a choice of versions.
#
#   scripts/install_for_tests.sh [--constraints pinned|newest|oldest] [--dry-run]
#
#   pinned   within constraints.txt, as scripts/test does (default)
#   newest   newest releases
#   oldest   oldest releases that pyproject.toml allows for dfmp2 itself; torch as pinned, and without
#            the test extras for other programs, which need newer releases
# Exit codes: 0, 1 pip failed, 2 wrong usage.

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/neuron_host.sh
source scripts/neuron_host.sh

choice=pinned
while [[ $# -gt 0 ]]; do
  case "$1" in
    --constraints) choice="$(value "$@")"; shift 2 ;;
    --dry-run) DRY_RUN=1 && shift ;;
    --help | -h) usage && exit 0 ;;
    *) fail 2 "unknown option $1; see --help" ;;
  esac
done
command=("$PYTHON" -m pip install --quiet --editable '.[test,docs]')
case "$choice" in
  pinned) command+=(--constraint constraints.txt) ;;
  newest) ;;
  oldest)
    oldest="$(mktemp)"
    trap 'rm -f "$oldest"' EXIT
    "$PYTHON" - >"$oldest" <<'EOF'
import tomllib

with open("pyproject.toml", "rb") as handle:
    wanted = tomllib.load(handle)["project"]["dependencies"]
for requirement in wanted:
    name, _, version = requirement.partition(">=")
    print(f"{name}=={version.split(',')[0]}.*")
EOF
    say "oldest: $(tr '\n' ' ' <"$oldest")"
    command=("$PYTHON" -m pip install --quiet --editable '.[torch,bse]' pytest pytest-xdist hypothesis)
    command+=(--constraint constraints.txt --constraint "$oldest")
    ;;
  *) fail 2 "--constraints $choice: expected pinned, newest or oldest" ;;
esac
run "${command[@]}"
