#!/bin/sh
# All measurements of speed that the documentation shows, as JSON and text, into a new folder. Hours on 2 cores; keep
# the machine idle meanwhile.
#
#     scripts/benchmarks/run.sh FOLDER && python scripts/benchmarks/tables.py FOLDER/*.json
set -eu
folder=${1:?usage: scripts/benchmarks/run.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/../.."

measure() { # NAME COMMAND...: exit code 8 (energies differ) is reported by the table, anything else ends the script
    name=$1
    shift
    echo "== $name: $*" >&2
    "$@" --json "$folder/$name.json" > "$folder/$name.txt" || test $? -eq 8
}

bench() { # NAME OPTION...
    name=$1
    shift
    measure "$name" python -P -m dfmp2 bench --overwrite "$@"
}

race() { # NAME BASIS REPEATS MEMORY: what is touched beforehand, a little more than the largest of them takes
    measure "$1-$2" python scripts/benchmarks/race.py "inputs/$1.xyz" --basis "$2" --against pyscf,pyscf-tuned,psi4 \
        --repeats "$3" --touch "$4"
}

bench gemm --gemm
bench shape-medium --shape medium --backend cpu
bench shape-large --shape large --backend cpu --repeats 1
bench shape-water-10 --shape 50/190/840 --backend cpu
for name in benz cor c60 w30; do bench "shape-$name" --shape "$name"; done
race h2o cc-pvdz 7 200MB
race benzene cc-pvtz 5 1GB
race water-10 cc-pvdz 3 1GB
race water-8 cc-pvtz 2 3GB
race c20h42 cc-pvdz 1 5GB
measure scaling python scripts/benchmarks/scaling.py --sizes 10,20,40
