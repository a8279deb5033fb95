"""Files of small checkpoints."""

import json


def config_json(quantization: object = None, **changes: object) -> bytes:
    """Return a small config.json of Qwen3's experts. `changes` are other fields; None: without."""
    fields: dict[str, object] = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "quantization_config": quantization,
    } | changes
    return json.dumps({k: v for k, v in fields.items() if v is not None}).encode()
