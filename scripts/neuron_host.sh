# shellcheck shell=bash
# Sourced by scripts: messages, values of options, dry runs, paths.

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

# absolute PATH: seen from where the script was started.
absolute() {
  case "$1" in
    /*) realpath -m "$1" ;;
    *) realpath -m "${START:-$PWD}/$1" ;;
  esac
}
