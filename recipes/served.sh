#!/bin/bash
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
# Servers on some GPUs and a pipeline on others, until the pipeline ends; by `bash` or by `sbatch`:
#
#     MODEL=mistralai/Mistral-7B-Instruct-v0.3 recipes/served.sh GENERATING TRAINING ARGUMENTS
#
# On one node the first GPUs generate, a server each, and the next ones train. Of two nodes, those of
# a Slurm job or of NODES="node1 node2", the first generates and the second trains; both see this
# folder. GPUs are those of CUDA_VISIBLE_DEVICES, where it is set. ARGUMENTS are those of
# scripts/run_pipeline.py. MODEL is what is served and trained, PORT that of the first server, LAUNCH
# the configuration and options of accelerate.
set -euo pipefail

fail() {
    echo "recipes/served.sh: $1" >&2
    exit 2
}

[ $# -ge 2 ] || fail "expected GENERATING TRAINING ARGUMENTS, got '$*'; see its first lines"
generating=$1 training=$2
shift 2
case " ${*//=/ } " in
    *" --actor.model "* | *" --actor.served.urls "*)
        fail "expected neither --actor.model nor --actor.served.urls; set MODEL" ;;
esac
command -v curl > /dev/null || fail "expected curl, which asks whether servers are up; install it"
[ -n "${MODEL:-}" ] || fail "MODEL: expected the model to serve and train, got none; set it"
port=${PORT:-8000}
launch="configs/accelerate/multi_gpu.yaml --num_processes $training"
[ "$training" != 1 ] || launch=configs/accelerate/cuda_bf16.yaml
launch=${LAUNCH:-$launch}

if [ "${SLURM_JOB_NUM_NODES:-1}" != 1 ]; then
    NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
fi
nodes=(${NODES:-127.0.0.1})
[ ${#nodes[@]} -le 2 ] || fail "expected one node or two, got ${nodes[*]}"
first=${nodes[0]} last=${nodes[-1]}
unused=0 listen=()
[ "$first" != "$last" ] || { unused=$generating listen=(--host "$first"); }
given=${CUDA_VISIBLE_DEVICES:-$(seq 0 $((generating + training - 1)))}
gpus=(${given//,/ })
[ ${#gpus[@]} -ge $((unused + training)) ] && [ ${#gpus[@]} -ge "$generating" ] ||
    fail "CUDA_VISIBLE_DEVICES: expected $((unused + training)) GPUs, got ${gpus[*]}"
trained=("${gpus[@]:unused:training}")

flight=$(((128 * generating + training - 1) / training)) # of each process
[ $flight -ge 64 ] || flight=64
case " ${*//=/ } " in
    *" --actor.served.in_flight "*) flight= ;;
esac
[ -z "${LACTCHAIN_SERVER_KEY:-}" ] || export VLLM_API_KEY=$LACTCHAIN_SERVER_KEY

on() { # becomes a command on a node
    local node=$1 name kept=()
    shift
    if [ "$first" = "$last" ]; then
        exec "$@"
    elif [ -n "${SLURM_JOB_ID:-}" ]; then
        exec srun --overlap --nodes=1 --ntasks=1 -w "$node" "$@"
    fi
    for name in PATH PYTHONPATH LD_LIBRARY_PATH HF_HOME HF_HUB_OFFLINE; do
        [ -z "${!name:-}" ] || kept+=("$name=${!name}")
    done
    # What may be secret goes through the connection: command lines are for everybody to see.
    exec ssh -tt -o "SendEnv=LACTCHAIN_SERVER_KEY VLLM_API_KEY HF_TOKEN *_PROXY *_proxy" "$node" \
        "cd $(printf %q "$PWD") && $(printf '%q ' env "${kept[@]}" "$@")"
}

alone= # the launcher of one process, which hands no signal on to it
stop() {
    trap stop TERM INT
    if [ -n "$alone" ] && pkill -TERM -P "$alone"; then
        wait "$alone" || true
    fi
    kill $(jobs -p) 2> /dev/null || true
    wait || true
}
trap stop EXIT
trap 'exit 143' TERM INT

for ((gpu = 0; gpu < generating; gpu++)); do
    ! (: < "/dev/tcp/$first/$((port + gpu))") 2> /dev/null ||
        fail "port $((port + gpu)) of $first: expected a free one, got a server; set PORT"
done
urls=() servers=()
for ((gpu = 0; gpu < generating; gpu++)); do
    on "$first" env CUDA_VISIBLE_DEVICES="${gpus[gpu]}" \
        VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_BATCH_INVARIANT=1 \
        vllm serve "$MODEL" --port $((port + gpu)) "${listen[@]}" --generation-config vllm \
        --enable-lora --max-lora-rank 64 --max-loras 2 --logprobs-mode processed_logprobs \
        > "server_$((port + gpu)).log" 2>&1 &
    servers+=($!)
    urls+=("http://$first:$((port + gpu))")
done
for ((gpu = 0; gpu < generating; gpu++)); do
    until curl -sf "${urls[gpu]}/health" > /dev/null && kill -0 "${servers[gpu]}" 2> /dev/null; do
        kill -0 "${servers[gpu]}" 2> /dev/null || {
            echo "recipes/served.sh: a server has ended, see server_$((port + gpu)).log" >&2
            exit 8
        }
        sleep "${PAUSE:-10}"
    done
done
all="[$(IFS=, && echo "${urls[*]}")]"

lactchain doctor --actor.model "$MODEL" --actor.served.urls "$all"

on "$last" env CUDA_VISIBLE_DEVICES="$(IFS=, && echo "${trained[*]}")" \
    accelerate launch --config_file $launch scripts/run_pipeline.py "$@" \
    --actor.model "$MODEL" --actor.served.urls "$all" \
    ${flight:+--actor.served.in_flight "$flight"} &
pipeline=$!
[ "$training" != 1 ] || [ "$first" != "$last" ] || alone=$pipeline
wait $pipeline
