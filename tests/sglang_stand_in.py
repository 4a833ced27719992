"""An engine that speaks SGLang 0.5.23's dialect, and computes by the project's Decoder."""

import json
from typing import Any

from engine_stand_in import Answer, Engine, answer
from engine_words import SGLANG, SGLANG_LOAD, VLLM_TOKENIZE, VLLM_UNLOAD, amiss

KNOWN = {
    "/generate": SGLANG,
    "/load_lora_adapter": SGLANG_LOAD,
    "/unload_lora_adapter": VLLM_UNLOAD,
    "/tokenize": VLLM_TOKENIZE,
}
NOT_ENABLED = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."


SUCCESS = answer(200, {"success": True, "error_message": "", "loaded_adapters": {}})


def refusal(words: str) -> Answer:
    """What `/generate` refuses."""
    return answer(400, {"error": {"message": words}})


def failure(words: str) -> Answer:
    """What the orders about adapters refuse."""
    told = {"success": False, "error_message": words, "loaded_adapters": None}
    return answer(400, told)


class SGLang(Engine):
    """As `Engine`; its base goes by the name of its folder."""

    async def _route(self, path: str, body: bytes) -> Answer:
        asked = json.loads(body) if body else {}
        if wrong := path in KNOWN and amiss(asked, KNOWN[path]):
            return refusal(wrong)
        if path == "/generate":
            return await self._generate(asked)
        routes = {
            "/v1/models": self._models,
            "/load_lora_adapter": self._load_adapter,
            "/unload_lora_adapter": self._unload_adapter,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/tokenize": self._tokenize,
        }
        path, _, _ = path.partition("?")
        return routes[path](asked) if path in routes else answer(404, {"detail": "Not Found"})

    def _server_info(self, _: dict[str, Any]) -> Answer:
        return answer(200, {"version": "0.5.stand-in", "internal_states": [{}]})

    async def _generate(self, asked: dict[str, Any]) -> Answer:
        adapter, sampling = asked.get("lora_path"), asked["sampling_params"]
        if adapter is not None and adapter not in self.adapters:
            loaded = f"All loaded adapters: {self.adapters.keys()}."
            return refusal(f"Got LoRA adapter that has never been loaded: {adapter}\n{loaded}")
        row = {
            "model": adapter or "base",
            "prompt": asked["input_ids"],
            "seed": sampling["sampling_seed"],
            "temperature": sampling["temperature"],
            "max_tokens": sampling["max_new_tokens"],
            "structured_outputs": {"regex": sampling.get("regex")},
        }
        status, more, content = await self._completion(row)
        if status != 200:
            return status, more, content
        (choice,) = json.loads(content)["choices"]
        return answer(200, self._told(choice, asked.get("return_prompt_token_ids", False)))

    def _told(self, choice: dict[str, Any], with_prompt: bool) -> dict[str, Any]:
        ended, ids = choice["finish_reason"], choice["token_ids"]
        reason = {"type": ended} | ({"matched": ids[-1]} if ended == "stop" else {"length": 8})
        pairs = zip(choice["logprobs"]["token_logprobs"], ids, strict=True)
        told = {
            "text": choice["text"],
            "output_ids": ids,
            "meta_info": {
                "id": "a",
                "finish_reason": reason,
                "output_token_logprobs": [[value, token, None] for value, token in pairs],
            },
        }
        return told | ({"prompt_token_ids": choice["prompt_token_ids"]} if with_prompt else {})

    def _models(self, _: dict[str, Any]) -> Answer:
        base = {"id": str(self.model), "root": str(self.model), "parent": None}
        adapters = [{"id": n, "root": p, "parent": base["id"]} for n, p in self.adapters.items()]
        return answer(200, {"object": "list", "data": [base, *adapters]})

    def _load_adapter(self, asked: dict[str, Any]) -> Answer:
        name = asked["lora_name"]
        if not self.max_rank:
            return failure(NOT_ENABLED)
        if name in self.adapters:
            return failure(f"Failed to load LoRA adapter {name} because it is already loaded")
        status, _, content = super()._load_adapter(asked)
        if status != 200:
            return failure(json.loads(content)["error"]["message"])
        return SUCCESS

    def _unload_adapter(self, asked: dict[str, Any]) -> Answer:
        name = asked["lora_name"]
        if not self.max_rank:
            return failure(NOT_ENABLED)
        if name not in self.adapters:
            return failure(f"LoRA with name {name} does not exist. Loaded LoRAs: ")
        super()._unload_adapter(asked)
        return SUCCESS
