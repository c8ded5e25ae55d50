# shellcheck shell=bash
# Sourced by the Neuron scripts: messages, dry runs, results folder, and where Neuron's tools are.

PYTHON="${PYTHON:-python3}"
DRY_RUN="${DRY_RUN:-0}"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# fail CODE MESSAGE
fail() {
  say "$2"
  exit "$1"
}

# The comment at the top of the script that is running.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# Run a command, or only show it.
run() {
  printf '+' >&2
  printf ' %q' "$@" >&2
  printf '\n' >&2
  [[ "$DRY_RUN" == 1 ]] || "$@"
}

# value OPTION VALUE: the value, or a refusal where it is missing.
value() {
  [[ $# -ge 2 && -n "$2" && "$2" != --* ]] || fail 2 "$1 needs a value; see --help"
  printf '%s' "$2"
}

# What a shell without a profile lacks: HOME, the interpreter's own tools and Neuron's on PATH, its libraries.
prepare_host() {
  local home
  command -v "$PYTHON" >/dev/null || fail 2 "no $PYTHON: set PYTHON to the interpreter that has dfmp2"
  home="$(getent passwd "$(id -u)" | cut -d: -f6)"
  export HOME="${HOME:-${home:-/tmp}}"
  PATH="$(dirname "$(command -v "$PYTHON")"):/opt/aws/neuron/bin:$PATH"
  export PATH PYTHON
  export LD_LIBRARY_PATH="/opt/aws/neuron/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

require_dfmp2() {
  [[ "$DRY_RUN" == 1 ]] && return
  has_dfmp2
}

has_dfmp2() {
  "$PYTHON" -P -c 'import dfmp2' 2>/dev/null || fail 2 "$PYTHON has no dfmp2: pip install -e '.[test]', or set PYTHON"
}

# absolute PATH: seen from where the script was started.
absolute() {
  case "$1" in
    /*) realpath -m "$1" ;;
    *) realpath -m "${START:-$PWD}/$1" ;;
  esac
}
