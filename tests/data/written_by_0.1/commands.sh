# The commands of dfmp2 0.1.0 that wrote the files of this folder, with one thread; .h5 files were compressed by xz afterwards.
set -e
export OMP_NUM_THREADS=1
run="dfmp2 run --quiet"
$run h2.xyz --basis 6-31g --output rhf.h5
$run nh2.xyz --basis sto-3g --output uhf.h5
$run h2o.xyz --basis sto-3g --frozen-core 1 --frozen-virtual 1 --output frozen.h5
$run hi.xyz --basis def2-svp --output core-potential.h5
$run ghost.xyz --basis sto-3g --output ghosts.h5
$run h2.xyz --basis 6-31g --point-charges charges.txt --output point-charges.h5
$run h2.xyz --basis 6-31g --relativity x2c --output x2c.h5
$run h2.xyz --basis 6-31g --os-scale 1.2 --ss-scale 0.5 --output scaled.h5
$run h2.xyz --basis 6-31g --scf conventional --output conventional.h5
$run h2.xyz --basis 6-31g --check --output checked.h5
$run h2-stretched.xyz --basis 6-31g --reference uhf --scf-starts 2 --output broken-symmetry.h5
$run h2o.xyz --basis sto-3g --precision fp64 --output fp64.h5
dfmp2 prepare h2o.xyz --basis sto-3g --quiet --output prepared.h5
dfmp2 energy --from prepared.h5 --quiet --output from-prepared.h5
dfmp2 derive fp64.h5 --frozen-core 1 --os-scale 1.1 --quiet --output derived.h5
dfmp2 interaction he2.xyz --fragments 1,2 --basis cc-pvdz --quiet --output interaction.h5
dfmp2 cbs he.xyz --basis 'cc-pv[dt]z' --quiet --output cbs.h5
dfmp2 scan h2.xyz --bond 1,2 0.7:0.8:3 --basis 6-31g --quiet --output scan.h5
dfmp2 batch run batch.toml --quiet || test $? = 9
dfmp2 batch collect batch.toml -o collected.h5
dfmp2 batch collect batch.toml -o collected.csv
dfmp2 batch collect batch.toml -o collected.json
dfmp2 export rhf.h5 --to qcschema -o exported.json
dfmp2 qcschema input.json > qcschema.json
dfmp2 validate --only h2o-sto-3g-weigend --table trnsci --quiet --output validation.h5
