"""What ids of other ecosystems' worlds begin with; nothing of these is imported yet."""

from lactchain.environments.registry import Scheme

_FOREIGN = "lactchain_extras.ecosystems.foreign"

openenv = Scheme(
    "lactchain_extras.ecosystems.openenv_client:OpenEnvWorld", "websockets", ".[openenv]"
)
textarena = Scheme(f"{_FOREIGN}:TextArenaWorld", "textarena", "textarena")
gem = Scheme(f"{_FOREIGN}:GemWorld", "gem", "gem-llm")
minigrid = Scheme("lactchain_extras.minigrid_words:MiniGrid", "minigrid", ".[minigrid]")
