#!/usr/bin/env bash
# Do what cpu.Dockerfile says, without an engine: its COPY, RUN and ENV lines in a new folder in place of the root, then
# water through its entry point, with nothing of this environment but its Python, as a user without rights if root.
#
#   scripts/container/test_cpu.sh [--python PYTHON] [--keep]
#
#   --python   interpreter of the "base image" (default python3), 3.11 or newer
#   --keep     leave the folder there and print its name
# Exit codes: 0, 1 a step failed or the energy is wrong, 2 wrong usage.

set -euo pipefail
cd "$(dirname "$0")/../.."
repository="$PWD"

say() { printf 'test_cpu.sh: %s\n' "$*" >&2; }
python=python3 keep=0
while [[ $# -gt 0 ]]; do
  case "$1" in
    --python) python="${2:?--python needs a value}" && shift 2 ;;
    --keep) keep=1 && shift ;;
    --help | -h) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) say "unknown option $1; see --help" && exit 2 ;;
  esac
done
recipe=scripts/container/cpu.Dockerfile
root="$(mktemp -d)"
trap '[[ "$keep" == 1 ]] && say "kept: $root" || rm -rf "$root"' EXIT
chmod 0755 "$root"
uid=10001
[[ "$(id -u)" == 0 ]] || uid="$(id -u)"

# The folders of the image, below the new root.
below() { sed -E "s#(^|[ =:\"])/(build|opt|work)#\\1$root/\\2#g" <<<"$1"; }
clean=(env -i "USER_ID=$uid" "PYTHON=$(command -v "$python")" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 "HOME=$root/home")
variables=()
while IFS= read -r line; do
  case "$line" in
    COPY\ *)
      read -ra words <<<"$(below "${line#COPY }")"
      target="${words[-1]}"
      unset 'words[-1]'
      if [[ "$target" == */ ]]; then
        mkdir -p "$target" && cp -r "${words[@]}" "$target"
      else
        mkdir -p "$(dirname "$target")" && cp -r "${words[0]}" "$target"
      fi
      ;;
    RUN\ *)
      step="$(below "${line#RUN }")"
      say "${line:0:100}"
      "${clean[@]}" bash -ec "$step"
      ;;
    ENV\ *)
      read -ra words <<<"$(below "${line#ENV }")"
      variables+=("${words[@]}")
      ;;
  esac
done <"$recipe"

as=()
[[ "$(id -u)" != 0 ]] || as=(setpriv --reuid "$uid" --regid "$uid" --clear-groups)
if ! "${as[@]}" test -x "$root/opt/dfmp2/bin/python"; then
  say "user $uid may not run $python: going on as root"
  as=()
fi
say "water, as user $("${as[@]}" id -u)"
install -m 0644 inputs/h2o.xyz "$root/work/h2o.xyz"
cd "$root/work"
"${as[@]}" env -i "${variables[@]}" LANG=C.UTF-8 "$root/opt/dfmp2/bin/dfmp2-entrypoint" \
  run h2o.xyz --basis cc-pvdz --precision fp64 --threads 1 --json --output h2o.h5 >"$root/water.json"
"$root/opt/dfmp2/bin/python" - "$root/water.json" "$repository/inputs/expected.json" <<'EOF'
import json, sys

found, expected = (json.load(open(name)) for name in sys.argv[1:])
key = "mp2_total_energy"
difference = found[key] - expected["cases"]["h2o"]["values"][key]
print(f"E(MP2) = {found[key]:.10f} Eh, {difference:+.1e} Eh from PySCF")
sys.exit(abs(difference) > 1e-8)
EOF
"$root/opt/dfmp2/bin/python" -m pip --disable-pip-version-check freeze --exclude dfmp2 >"$root/installed.txt"
sort "$repository/scripts/container/constraints.txt" >"$root/pinned.txt"
free="$(sort "$root/installed.txt" | comm -23 - "$root/pinned.txt" | tr '\n' ' ')"
[[ -z "$free" ]] || { say "not pinned in constraints.txt: $free" && exit 1; }
say "all steps passed"
