"""Where completions would lead, by a world's exact model: for pictures of what was not played."""

import json
from functools import cached_property

from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.inspection.pictures import Picture

Way = list[list[int]]


class Ways:
    """The ways of completions in one world; none without model or picture, or with dice."""

    def __init__(self, env: LanguageEnv | None) -> None:
        self._env = env
        self._known: dict[tuple[str, str], Way | None] = {}

    def way(self, state: State, completion: str) -> Way | None:
        """The positions that the actions of a completion lead to, in order; None if unknown."""
        if self._model is None:
            return None
        key = json.dumps(state, sort_keys=True), completion
        if key not in self._known:
            self._known[key] = self._follow(state, completion)
        return self._known[key]

    def _follow(self, state: State, completion: str) -> Way | None:
        try:
            number = int(self._model.non_terminal[self._model.row(state)])
        except (AttributeError, KeyError, TypeError, ValueError):  # no state of this world
            return None
        way = []
        for action in getattr(self._env.extractor.parse(completion), "actions", ()):
            number = int(self._model.next_state[number, action, 0])
            scene = self._picture.look(self._model.states[number])
            if scene is None or scene.agent is None:
                return None
            way.append(list(scene.agent))
            if self._model.terminal[number]:
                break
        return way

    @cached_property
    def _picture(self) -> Picture:
        return self._env.view.picture

    @cached_property
    def _model(self):
        env = self._env
        if env is None or env.view.picture is None or env.view.model is None:
            return None
        model = env.view.model(env.env)
        return model if model.deterministic else None
