"""Asks servers that are to generate what they are, and says what has to be mended.

python scripts/doctor.py --url http://127.0.0.1:8000 --actor.model weights/tiny-actor
python scripts/doctor.py --config configs/doctor/gridworld_tiny.yaml
python scripts/doctor.py --config configs/doctor/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.doctor import DoctorConfig, main

if __name__ == "__main__":
    launch(main, DoctorConfig, __doc__)
