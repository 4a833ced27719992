"""The five levels of BALROG (Paglieri et al. 2025), which Farama's package does not have.

GLAM (Carta et al. 2023) drew them first, for BabyAI in words; the distributions are theirs.
"""

from typing import Any

from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

MIXED = "BabyAI-MixedTrainLocal-v0/"
"""What their ids begin with."""


class MixedLocal(RoomGridLevel):
    """The levels of one kind of mission, as GLAM (Carta et al. 2023) draws them and BALROG asks.

    A room of 8 × 8 with nine or ten things, beside a locked one if a door is to be opened; missions
    that name a yellow box, a red key or door, a green ball or a grey door are drawn anew. Of kinds
    joined by "+" each task draws its own; the level of doors has another shape and stays alone.
    """

    KINDS = ("goto", "pickup", "open", "putnext", "pick_up_seq_go_to")
    EXCLUDED = ("yellow box", "red key", "red door", "green ball", "grey door")

    def __init__(self, kinds: str, **kwargs: Any) -> None:
        self.kinds = kinds.split("+")
        alone = "open" in self.kinds
        if not {*self.kinds} <= {*self.KINDS} or alone and len(self.kinds) > 1:
            known = f"{MIXED} and one of {self.KINDS}, or some but open joined by +"
            raise ValueError(f"id: expected {known}, got {kinds!r}")
        super().__init__(room_size=8, num_rows=1, num_cols=1 + alone, **kwargs)

    def gen_mission(self) -> None:
        """Draws things and a mission."""
        kind = self.kinds[0] if len(self.kinds) == 1 else self._rand_elem(self.kinds)
        self.instrs = self._behind_a_door() if kind == "open" else self._in_a_room(kind)
        if any(pair in self.instrs.surface(self) for pair in self.EXCLUDED):
            raise RejectSampling("a pair that is kept for tests")

    def _behind_a_door(self) -> OpenInstr:
        color = self._rand_elem(["yellow", "green", "blue", "purple"])
        locked, here = self._rand_elem([(0, 1), (1, 0)])
        self.add_door(locked, 0, 0 if locked == 0 else 2, color, locked=True)
        self.add_object(here, 0, "key", color)
        self.add_distractors(here, 0, num_distractors=8, all_unique=False)
        self.place_agent(here, 0)
        self.check_objs_reachable()
        return OpenInstr(ObjDesc("door", self._rand_elem([None, color])))

    def _in_a_room(self, kind: str) -> Any:
        self.place_agent()
        one = 9 if kind in ("goto", "pickup") else 10
        things = self.add_distractors(num_distractors=one, all_unique=False)
        self.check_objs_reachable()
        first, second = (self._rand_elem(things) for _ in range(2))
        kinds, kind_of_first = [(t.type, t.color) for t in things], (first.type, first.color)
        wanted, other = ObjDesc(*kind_of_first), ObjDesc(second.type, second.color)
        if kind == "goto":
            return GoToInstr(wanted)
        if kind == "pickup":
            return PickupInstr(wanted)
        if kind_of_first == (second.type, second.color) and kinds.count(kind_of_first) < 2:
            raise RejectSampling("there is one such thing alone")
        if kind == "putnext":
            return PutNextInstr(wanted, other)
        pick, go = PickupInstr(wanted), GoToInstr(other)
        return self._rand_elem([BeforeInstr(pick, go), AfterInstr(go, pick)])
