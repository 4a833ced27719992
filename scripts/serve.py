"""Serves an environment at a URL: TRL, verifiers and others play it by OpenEnv's protocol.

python scripts/serve.py --config configs/serve/gridworld_tiny.yaml
python scripts/serve.py --config configs/serve/gridworld_mistral7b.yaml --port 0
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.serve import ServeConfig, main

if __name__ == "__main__":
    launch(main, ServeConfig, __doc__)
