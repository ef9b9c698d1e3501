# SPDX-License-Identifier: Apache-2.0
"""python -m tenuto.demo: one long prompt in transformers, twice: computed, then restored by another process. Time to first token of both.

Both processes compute another prompt of the same length first, and keep a short one: what a process does once is not in the table.
The model is a Llama with random weights, the same in both processes (nothing is downloaded). Needs torch and transformers.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from tenuto import _scratch

NEW = 16
BLOCK = 256


def _model(layers: int, threads: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=4096, hidden_size=512, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4,
                         max_position_embeddings=32768)
    return LlamaForCausalLM(config).eval()


def _prompt(seed: int, tokens: int) -> Any:
    import torch
    return torch.randint(4096, (1, tokens), generator=torch.Generator().manual_seed(seed))


def _warm_up(model: Any, prefixes: Any, tokens: int) -> None:
    """What is done once in a process: threads and memory of torch for a prompt of this length, and Tenuto's first save and load."""
    from transformers.cache_utils import DynamicCache

    from tenuto.hf import past
    ids, kv = _prompt(3, tokens), DynamicCache(config=model.config)
    for part in ids.split([tokens - 2, 1, 1], 1):
        model(input_ids=part, **past(model, kv), use_cache=True, logits_to_keep=1)
    short = _prompt(4, BLOCK + 1)
    prefixes.prefill(model, short)
    prefixes.restore(short)


def _run(args: argparse.Namespace) -> None:
    """One process: a prompt, its first token, some more. Prints what happened as JSON."""
    import torch

    import tenuto
    from tenuto.hf import Prefixes, past
    model = _model(args.layers, args.threads)
    ids = _prompt(2, args.tokens)
    with tenuto.Cache(args.dir, disk_bytes=args.disk_bytes) as cache:
        prefixes = Prefixes(cache, model.config, 'demo')
        with torch.no_grad():
            _warm_up(model, prefixes, args.tokens)
        before = cache.devices()[0]['bytes_read']
        begin = time.perf_counter()
        with torch.no_grad():
            kv, restored = prefixes.prefill(model, ids)
            out = model(input_ids=ids[:, kv.get_seq_length():], **past(model, kv), use_cache=True, logits_to_keep=1)
            tokens = [int(out.logits[0, -1].argmax())]
            first = time.perf_counter() - begin
            for _ in range(NEW - 1):
                out = model(input_ids=torch.tensor([[tokens[-1]]]), **past(model, kv), use_cache=True)
                tokens.append(int(out.logits[0, -1].argmax()))
        read = cache.devices()[0]['bytes_read'] - before
        cache.flush()
    print(json.dumps({'restored': restored, 'ttft_s': first, 'tokens': tokens, 'bytes_read': read}))


def _child(args: argparse.Namespace, directory: str) -> dict[str, Any]:
    command = [sys.executable, '-m', 'tenuto.demo', '--role', 'one', '--dir', directory, '--tokens', str(args.tokens), '--layers', str(args.layers), '--threads',
               str(args.threads), '--disk-bytes', str(args.disk_bytes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tenuto.demo', description=__doc__)
    parser.add_argument('--tokens', type=int, default=4000, help='length of the prompt (4000)')
    parser.add_argument('--layers', type=int, default=8, help="the model's (8)")
    parser.add_argument('--threads', type=int, default=2, help='of torch (2)')
    parser.add_argument('--dir', help='where to keep the blocks; a temporary directory if not given')
    parser.add_argument('--disk-bytes', type=int, default=1 << 30, help='capacity of a new store (1 GiB)')
    parser.add_argument('--json', action='store_true', help='for machines')
    parser.add_argument('--role', choices=['one'], help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as e:
        print(f"the demo needs torch and transformers ({e}): pip install .[hf]", file=sys.stderr)
        return 3
    if args.role:
        _run(args)
        return 0
    directory = args.dir or _scratch.make()
    try:
        rounds = [_child(args, directory) for _ in range(2)]
    finally:
        if not args.dir:
            _scratch.remove(directory)
    same = rounds[0]['tokens'] == rounds[1]['tokens']
    if args.json:
        print(json.dumps({'rounds': rounds, 'same_tokens': same}))
    else:
        print(f'a prompt of {args.tokens} tokens, a Llama of {args.layers} layers with random weights, two processes one after the other\n')
        print('process   restored      computed   time to first token')
        for name, r in zip(('first', 'second'), rounds):
            print(f'{name:8}{r["restored"]:6} tokens{args.tokens - r["restored"]:7} tokens{1000 * r["ttft_s"]:15.0f} ms')
        print(f'\nread from disk by the second: {rounds[1]["bytes_read"] / 1e6:.0f} MB, verified; {NEW} tokens generated: {"the same" if same else "DIFFERENT"}')
    return 0 if same and rounds[1]['restored'] >= rounds[0]['restored'] and rounds[1]['restored'] > 0 else 1


if __name__ == '__main__':
    sys.exit(main())
