# SPDX-License-Identifier: Apache-2.0
"""Makes a LoRA adapter with random weights for the model of tiny_model.py: python tiny_adapter.py DIR SEED MODEL."""
import json
import os
import sys

import torch
from safetensors.torch import save_file

RANK = 8


def main():
    out, seed, model = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    torch.manual_seed(seed)
    rows = {"q_proj": config["num_attention_heads"] * config["head_dim"], "k_proj": config["num_key_value_heads"] * config["head_dim"],
            "v_proj": config["num_key_value_heads"] * config["head_dim"]}
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, n in rows.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, config["hidden_size"]) / 10
            weights[f"{prefix}.lora_B.weight"] = torch.randn(n, RANK) / 10
    os.makedirs(out, exist_ok=True)
    save_file(weights, os.path.join(out, "adapter_model.safetensors"))
    with open(os.path.join(out, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": list(rows), "bias": "none"}, f)


if __name__ == "__main__":
    main()
