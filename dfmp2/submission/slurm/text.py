"""The parts of Slurm scripts that are the same for every batch; what differs is in variables set above them.

A scheduler that wants a task to end signals either the script alone (`--signal=B:`, `scancel --batch`) or all of its
processes (`scancel`, preemption). So the script waits in the background of its shell, where a trap can run, and passes
SIGTERM on; dfmp2 takes one that comes twice within a second for one. It saves and ends with 75 within 10 s.
"""

from __future__ import annotations

SAY = r"""
say() { printf '%(%FT%T%z)T %s\n' -1 "$*" >&2; }
"""

# dfmp2 sets the threads itself; binding them to cores would put all workers on the same ones. The manifest names the
# backend.
ENVIRONMENT = r"""
PATH=$(dirname -- "$python"):$PATH
export PATH
unset OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY
unset OPENBLAS_NUM_THREADS MKL_NUM_THREADS BLIS_NUM_THREADS DFMP2_BACKEND
"""

TASK = r"""
task=${SLURM_ARRAY_TASK_ID:-}
if [[ -z $task || -z ${SLURM_ARRAY_JOB_ID:-} ]]; then
  say "no task of a Slurm array: submit this file with sbatch"
  exit 3
fi
if ((task >= shards)); then
  say "task $task: the batch was cut into $shards shards, so tasks are 0 to $((shards - 1))"
  exit 3
fi
id=${SLURM_ARRAY_JOB_ID}_$task
"""

SCRATCH = r"""
scratch=$(mktemp -d -- "$scratch/dfmp2-$SLURM_JOB_ID-XXXXXXXX") || exit 7
trap 'rm -rf -- "$scratch"' EXIT
export TMPDIR=$scratch DFMP2_SCRATCH=$scratch
"""

# A chip of Slurm's gpu/nrt plugin is /dev/neuronN; no variable of Slurm names its NeuronCores.
CORES = r"""
cores() { # of chips such as 0,2-3
  local part chip found=
  for part in ${1//,/ }; do
    for ((chip = ${part%-*}; chip <= ${part#*-}; chip++)); do
      found+=",$((cores_per_chip * chip))-$((cores_per_chip * chip + cores_per_chip - 1))"
    done
  done
  printf '%s' "${found#,}"
}
if [[ ! ${SLURM_JOB_GPUS:-} =~ ^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$ ]]; then
  say "Slurm has allocated no Trainium chip (SLURM_JOB_GPUS is '${SLURM_JOB_GPUS:-}'): see --gres"
  exit 6
fi
NEURON_RT_VISIBLE_CORES=$(cores "$SLURM_JOB_GPUS")
export NEURON_RT_VISIBLE_CORES
say "NeuronCores $NEURON_RT_VISIBLE_CORES of the chips $SLURM_JOB_GPUS"
"""

# What is allocated counts, not what was asked for; a tenth of the memory is left to the system's buffers.
SHARE = r"""
cpus=${SLURM_CPUS_PER_TASK:-$cpus}
threads=$((cpus < workers ? 1 : cpus / workers))
run+=(--shard "$task/$shards" --workers "$workers" --threads "$threads")
mebibytes=${SLURM_MEM_PER_NODE:-$((${SLURM_MEM_PER_CPU:-0} * cpus))}
if ((mebibytes > 0)); then
  run+=(--memory "$((mebibytes * 9 / 10))MiB")
fi
"""

RUN = r"""
child='' stopping=''
stop() {
  stopping=1 signalled=1
  [[ -z $child ]] || kill -TERM "$child" 2>/dev/null
}
trap stop TERM
say "task $task of $shards on $(uname -n), restart ${SLURM_RESTART_COUNT:-0}: ${run[*]}"
"${run[@]}" &
child=$!
[[ -z $stopping ]] || stop # it came before there was a child
while :; do
  signalled=''
  wait "$child"
  code=$?
  # Above 128 after a signal: the trap may have ended the wait, not the child.
  if ((code <= 128)) || [[ -z $signalled ]]; then
    break
  fi
done
trap '' TERM
[[ $code -ne 143 || -z $stopping ]] || code=75 # stopped before it could listen
"""

# A task that was cancelled, or that Slurm requeues by itself, is not running any more.
REQUEUE = r"""
if ((code == 75)); then
  state=$(squeue --noheader --format=%T --jobs="$id" 2>/dev/null)
  if [[ $state != RUNNING ]]; then
    say "interrupted; Slurm says ${state:-nothing}: not requeued by this script"
  elif ((${SLURM_RESTART_COUNT:-0} >= restarts)); then
    say "interrupted, and restarted ${SLURM_RESTART_COUNT:-0} times before: not requeued; submit again to go on"
  else
    say "interrupted: requeued"
    scontrol requeue "$id" || say "scontrol could not requeue it: submit again to go on"
  fi
fi
say "exit code $code"
exit "$code"
"""
