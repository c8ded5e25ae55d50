#!/bin/sh
# Make all speed measurements shown in the documentation, as JSON and as tables (FOLDER/*.txt). Takes hours on 2 cores;
# keep the machine idle meanwhile.
#
#     scripts/benchmarks/run.sh FOLDER
set -eu
folder=${1:?usage: scripts/benchmarks/run.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/../.."

measure() { # NAME COMMAND...: exit code 8 (energies differ) is reported by the table, anything else ends the script
    name=$1
    shift
    echo "== $name: $*" >&2
    "$@" > "$folder/$name.txt" || test $? -eq 8
}

bench() { # NAME OPTION...
    name=$1
    shift
    measure "$name" python -P -m dfmp2 bench --overwrite "$@" --json "$folder/$name.json"
}

race() { # FILE BASIS REPEATS MEMORY [OPTION...]: memory touched beforehand, a little more than the largest program takes
    file=$1 basis=$2 given="--repeats $3 --touch $4 --against $against $more"
    shift 4
    name=$(basename "$file" .xyz)-$basis$(printf %s "$more" "$@" | tr ", " --)
    measure "$name" python scripts/benchmarks/race.py --basis "$basis" $given --json "$folder/$name.json" "$file" -- "$@"
}

against=pyscf,pyscf-tuned,psi4 more=
bench gemm --gemm
bench shape-medium --shape medium --backend cpu
bench shape-large --shape large --backend cpu --repeats 1
race inputs/h2o.xyz cc-pvdz 7 200MB
race inputs/benzene.xyz cc-pvtz 5 1GB
race inputs/benzene.xyz cc-pvtz 5 1GB --frozen-core auto
race scripts/benchmarks/tert-butyl.xyz cc-pvtz 5 1GB
race scripts/benchmarks/tert-butyl.xyz cc-pvtz 3 1GB --stability off
race inputs/water-10.xyz cc-pvdz 5 1GB
race inputs/water-8.xyz cc-pvtz 5 3GB
# Final grids with the same number of points in all programs; Psi4 prunes its own less.
more="--psi4-grid 50,302"
race inputs/benzene.xyz cc-pvtz 5 2GB --method b2plyp --grid 75,302
race inputs/water-8.xyz cc-pvtz 3 5GB --method b2plyp --grid 75,302
race scripts/benchmarks/tert-butyl.xyz cc-pvdz 5 1GB --method b2plyp --grid 75,302
more="--psi4-grid 50,302 --gradient"
race inputs/benzene.xyz cc-pvdz 3 2GB --method b2plyp --grid 75,302
against=pyscf,pyscf-tuned more=
race inputs/benzene.xyz cc-pvtz 5 2GB --method ks --xc b3lyp --grid 75,302
against=pyscf,pyscf-tuned,psi4
race inputs/c20h42.xyz cc-pvdz 3 5GB
measure kinds python scripts/benchmarks/kinds.py --repeats 5 --json "$folder/kinds.json"
measure scaling python scripts/benchmarks/scaling.py --sizes 10,20,40 --json "$folder/scaling.json"
measure c60 python -P -m dfmp2 run scripts/benchmarks/c60.xyz --basis cc-pvdz --output "$folder/c60.h5"
measure data-set python scripts/benchmarks/data_set.py "$folder/data-set"
