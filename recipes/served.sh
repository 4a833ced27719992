#!/bin/bash
#SBATCH --ntasks-per-node=1
# Servers on some GPUs and a pipeline on others, until the pipeline ends; by `bash` or by `sbatch`:
#
#     recipes/served.sh GENERATING TRAINING ARGUMENTS
#
# On one node the first GPUs generate, a server each, and the next ones train. Of two nodes, those of
# a Slurm job or of NODES="node1 node2", the first generates and the second trains; both see this
# folder. ARGUMENTS are those of scripts/run_pipeline.py. MODEL is what is served, PORT that of the
# first server, LAUNCH the configuration and options of accelerate.
set -euo pipefail

generating=$1 training=$2
shift 2
model=${MODEL:-mistralai/Mistral-7B-Instruct-v0.3}
port=${PORT:-8000}
launch="configs/accelerate/multi_gpu.yaml --num_processes $training"
[ "$training" != 1 ] || launch=configs/accelerate/cuda_bf16.yaml
launch=${LAUNCH:-$launch}

if [ "${SLURM_JOB_NUM_NODES:-1}" != 1 ]; then
    NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
fi
nodes=(${NODES:-127.0.0.1})
first=${nodes[0]} last=${nodes[-1]}
unused=0
[ "$first" != "$last" ] || unused=$generating

on() { # becomes a command on a node
    local node=$1
    shift
    if [ "$first" = "$last" ]; then
        exec "$@"
    elif [ -n "${SLURM_JOB_ID:-}" ]; then
        exec srun --overlap --nodes=1 --ntasks=1 -w "$node" "$@"
    else
        exec ssh -tt "$node" "cd $(printf %q "$PWD") && $(printf '%q ' "$@")"
    fi
}

trap 'kill $(jobs -p) 2> /dev/null || true; wait || true' EXIT
trap 'exit 143' TERM INT

urls=() servers=()
for ((gpu = 0; gpu < generating; gpu++)); do
    on "$first" env CUDA_VISIBLE_DEVICES=$gpu \
        VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_BATCH_INVARIANT=1 \
        vllm serve "$model" --port $((port + gpu)) --generation-config vllm \
        --enable-lora --max-lora-rank 64 --max-loras 2 --logprobs-mode processed_logprobs \
        > "server_$((port + gpu)).log" 2>&1 &
    servers+=($!)
    urls+=("http://$first:$((port + gpu))")
done
for ((gpu = 0; gpu < generating; gpu++)); do
    until curl -sf "${urls[gpu]}/health" > /dev/null; do
        kill -0 "${servers[gpu]}" || exit 8 # it has ended, see its log
        sleep "${PAUSE:-10}"
    done
done
all="[$(IFS=, && echo "${urls[*]}")]"

lactchain doctor --actor.model "$model" --actor.served.urls "$all"

on "$last" env CUDA_VISIBLE_DEVICES="$(seq -s, $unused $((unused + training - 1)))" \
    accelerate launch --config_file $launch scripts/run_pipeline.py "$@" \
    --actor.model "$model" --actor.served.urls "$all" &
wait $!
