r"""Makes preference pairs: K completions to each state, played and ranked, best over worst.

python scripts/make_preferences.py --config configs/make_preferences/gridworld_tiny.yaml
accelerate launch --config_file configs/accelerate/multi_gpu.yaml \
        scripts/make_preferences.py --config configs/make_preferences/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.make_preferences import MakePreferencesConfig, main

if __name__ == "__main__":
    launch(main, MakePreferencesConfig, __doc__)
