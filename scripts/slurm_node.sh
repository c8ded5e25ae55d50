# shellcheck shell=bash
# Sourced by scripts/test_slurm: a Slurm of one node, without systemd, control groups or a database.

# install_slurm: Debian's packages, whose services are not started; a line says what was installed.
install_slurm() {
  local policy=/usr/sbin/policy-rc.d made=0
  if command -v slurmctld slurmd sbatch munged >/dev/null; then
    say "Slurm is there: $(slurmctld -V)"
    return
  fi
  command -v apt-get >/dev/null || fail 6 "there is no apt-get: install slurm-wlm and munge, then run this again"
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
    made=1
  fi
  apt-get -qq update >"$1" 2>&1 || true # an old list may do
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends --yes slurm-wlm munge >>"$1" 2>&1 || {
    [[ $made == 0 ]] || rm -f $policy
    fail 6 "apt-get cannot install slurm-wlm: $(tail -n 3 "$1")"
  }
  [[ $made == 0 ]] || rm -f $policy
  say "installed: $(slurmctld -V)"
}

# free_ports COUNT: numbers that nobody listens on.
free_ports() {
  "$PYTHON" - "$1" <<'EOF'
import socket
import sys

taken = [socket.create_server(("", 0)) for _ in range(int(sys.argv[1]))]
print(*(found.getsockname()[1] for found in taken))
EOF
}

# configure_slurm FOLDER: slurm.conf of a node with all cores of this machine; exports SLURM_CONF.
configure_slurm() {
  local folder="$1" host ports memory
  host="$(hostname -s)"
  read -ra ports <<<"$(free_ports 2)"
  memory="$(awk '/MemTotal/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)"
  mkdir -p "$folder/state" "$folder/spool" "$folder/munge"
  chmod 755 "$folder" "$folder/munge" # munged wants its socket to be reachable
  dd if=/dev/urandom of="$folder/munge/key" bs=1 count=1024 status=none
  chmod 600 "$folder/munge/key"
  cat >"$folder/slurm.conf" <<EOF
ClusterName=dfmp2-test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued task waits until the credential of its last start has expired, 120 s by default.
AuthInfo=socket=$folder/munge/socket,cred_expire=10
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/finished
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MinJobAge=3600
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
SchedulerParameters=batch_sched_delay=1,sched_interval=2
PropagateResourceLimits=NONE
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory Gres=gpu:2 State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=60 State=UP
EOF
  # Two chips that are none: what Slurm tells a task about its devices is the same.
  ln -s /dev/null "$folder/neuron0"
  ln -s /dev/null "$folder/neuron1"
  printf 'AutoDetect=off\nName=gpu File=%s/neuron[0-1]\n' "$folder" >"$folder/gres.conf"
  export SLURM_CONF="$folder/slurm.conf"
}

# start_slurm FOLDER: the daemons, until the node is idle.
start_slurm() {
  local folder="$1"
  munged --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
    --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" || fail 1 "munged does not start"
  slurmctld -c || fail 1 "slurmctld does not start: $(tail -n 5 "$folder/slurmctld.log")"
  slurmd -c || fail 1 "slurmd does not start: $(tail -n 5 "$folder/slurmd.log")"
  wait_until 60 "the node is idle" node_is_idle || fail 1 "the node does not come up: $(tail -n 5 "$folder/slurmd.log")"
}

node_is_idle() { [[ "$(sinfo --noheader --format=%T 2>/dev/null)" == idle ]]; }

# stop_slurm FOLDER: every job and daemon of that folder, and only those.
stop_slurm() {
  local folder="$1" file pid
  if [[ -s "$folder/slurmctld.pid" ]]; then
    scancel --quiet --user=root 2>/dev/null || true
    for _ in {1..40}; do
      [[ -n "$(squeue --noheader 2>/dev/null)" ]] || break
      sleep 1
    done
  fi
  for file in slurmd.pid slurmctld.pid munge/pid; do
    pid="$(cat "$folder/$file" 2>/dev/null || true)"
    [[ -n "$pid" ]] || continue
    kill "$pid" 2>/dev/null || continue
    for _ in {1..50}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.2
    done
    kill -KILL "$pid" 2>/dev/null || true
  done
}

# wait_until SECONDS WHAT COMMAND: poll; false when it did not happen.
wait_until() {
  local end=$((SECONDS + $1)) what="$2"
  shift 2
  until "$@"; do
    if ((SECONDS >= end)); then
      say "it did not happen in time: $what"
      return 1
    fi
    sleep 0.2
  done
}
