# The commands that wrote the files of this folder, with one thread; .h5 files were compressed by xz afterwards.
set -e
export OMP_NUM_THREADS=1
small="--basis sto-3g --threads 1 --precision fp64 --quiet"
run="dfmp2 run --quiet --threads 1"
$run oh.xyz --basis 6-31g* --auxbasis cc-pvdz-ri --scf-auxbasis def2-universal-jkfit --frozen-core 1 --frozen-virtual 2 --point-charges field.txt --properties --check --certify-fit --stability full --output radical.h5
$run oh.xyz --basis 6-31g --reference rohf --method scs-mp2 --output restricted-open.h5
$run water.xyz --basis sto-3g --method b2plyp --grid 1 --solvent water --output double-hybrid.h5
$run water.xyz --basis sto-3g --polarizability --output polarizability.h5
$run water.xyz --basis sto-3g --xc pbe0 --method drpa --grid 1 --output quadrature.h5
$run water.xyz --basis sto-3g --method sos-laplace --relativity x2c --output laplace.h5
$run water.xyz --basis cc-pvdz --frozen-core auto --memory 300MB --output mixed.h5
dfmp2 gradient oh.xyz $small --frozen-core 1 --check --output gradient.h5
dfmp2 optimize heh.xyz $small --stability off --output optimization.h5
dfmp2 frequencies bent.xyz $small --allow-gradient --temperature 350 --output frequencies.h5
dfmp2 thermo frequencies.h5 --temperature 200,300 --isotope H=2H --quiet --output thermochemistry.h5
dfmp2 scan oh.xyz $small --bond 1,2 0.9:1.2:5 --frozen-core 1 --output scan.h5
dfmp2 scan li.xyz $small --bond 2,3 0.7:0.8:3 --angle 1,2,3 95:120:2 --output map.h5
dfmp2 interaction li.xyz $small --fragments 1,2-3 --charges 1,0 --output interaction.h5
dfmp2 cbs he.xyz --basis 'cc-pv[dt]z' --method scs-mp2 --delta 'ccsd(t)/6-31g' --threads 1 --quiet --output limit.h5
dfmp2 reaction $small --reactants he.xyz,wide.xyz --products heh.xyz,he.xyz --output reaction.h5
dfmp2 optimize h3.xyz $small --transition-state --verify --output saddle.h5
dfmp2 thermo saddle.h5 --quasi-harmonic grimme --temperature 400 --quiet --output saddle-thermochemistry.h5
dfmp2 irc saddle.xyz $small --start-hessian saddle.h5 --max-steps 3 --output path.h5 || test $? = 4
rm saddle.* frequencies.*
