#!/usr/bin/env bash
# Install dfmp2 into a folder of its own, as the container images do; the rest of the machine stays as it is.
#
#   scripts/container/install.sh --prefix DIR [--work DIR [--uid N]] [--python PYTHON] [--inherit]
#                                [--index URL --add "PACKAGE..."]
#   scripts/container/install.sh --prefix DIR --index URL --only "PACKAGE..." [--python PYTHON]
#
#   --prefix   folder to make; its bin folder holds dfmp2 and the entry point of the images
#   --work     also make the folder for scratch, caches and HOME, owned by user --uid (as root)
#   --python   interpreter, 3.11 or newer (default python3)
#   --inherit  packages of that interpreter stay visible, as those of an image with torch-neuronx
#   --index    another package index, beside PyPI
#   --add      packages to install beside dfmp2, within no constraints
#   --only     packages to install instead of dfmp2, as a compiler that clashes with it
# Versions are those of constraints.txt beside this script. Exit codes: 0, 1 an installation failed, 2 wrong usage.

set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

say() { printf 'install.sh: %s\n' "$*" >&2; }
fail() {
  say "$1"
  exit 2
}
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

prefix='' work='' uid='' python=python3 index='' add='' only=''
inherit=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) usage && exit 0 ;;
    --inherit) inherit=(--system-site-packages) && shift && continue ;;
    --prefix | --work | --uid | --python | --index | --add | --only) ;;
    *) fail "unknown option $1; see --help" ;;
  esac
  [[ $# -ge 2 ]] || fail "$1 needs a value; see --help"
  printf -v "${1#--}" '%s' "$2" # an empty value is that of a build argument nobody gave
  shift 2
done
[[ "$prefix" == /* ]] || fail "--prefix '$prefix': expected an absolute path"
[[ ! -e "$prefix" ]] || fail "--prefix $prefix exists already: name a new folder"
[[ -z "$uid" || "$uid" =~ ^[1-9][0-9]*$ ]] || fail "--uid '$uid': expected the number of a user other than root"
[[ -z "$add$only" || -n "$index" ]] || fail "--add and --only need --index: PyPI has placeholders of Neuron's names"
read -ra packages <<<"$add$only"
indices=()
[[ -z "$index" ]] || indices=(--extra-index-url "$index")

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "--python $python: expected Python 3.11 or newer"
"$python" -m venv "${inherit[@]}" "$prefix"
pip=("$prefix/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-cache-dir)
if [[ -n "$only" ]]; then
  "${pip[@]}" "${indices[@]}" "${packages[@]}"
else
  "${pip[@]}" --constraint "$here/constraints.txt" "$here/../..[aws]"
  [[ ${#packages[@]} -eq 0 ]] || "${pip[@]}" "${indices[@]}" "${packages[@]}"
  install -m 0755 "$here/entrypoint.sh" "$prefix/bin/dfmp2-entrypoint"
  "$prefix/bin/dfmp2" --version
fi
if [[ -n "$work" ]]; then
  mkdir -p "$work"
  [[ -z "$uid" || "$(id -u)" != 0 ]] || chown "$uid:$uid" "$work"
fi
say "$prefix is complete"
