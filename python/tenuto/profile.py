# SPDX-License-Identifier: Apache-2.0
"""python -m tenuto.profile: times each layer of a model in its engine, and makes a slack table of it (docs/tables.md).

The model runs once per pair of an input and a prefix length and repetition, with random tokens. Hooks before and after each decoder layer take the times: CUDA
events on a GPU, else the clock. Nothing else may use the machine meanwhile. The table lies where the engine's next start looks for it.

What cannot be done is one line and an exit code of docs/program.md, before anything is timed where that can be known.
"""
from __future__ import annotations

import argparse
import contextlib
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tenuto
from tenuto import slack

INPUTS, PREFIXES = (1, 64, 256, 1024, 4096), (0, 1024, 4096, 16384)
MOST_LENGTHS, MOST_TOKENS, NAME_BYTES = 32, 1 << 40, 63  # of tenuto/slack.h
WEIGHTS = ('.safetensors', '.bin', '.pt', '.pth', '.gguf')
USAGE, ENVIRONMENT = 2, 3  # exit codes of docs/program.md
Rows = dict[tuple[int, int], list[list[int]]]  # by (input, prefix): the ns of the layers, once per repetition



def stop(code: int, text: str) -> NoReturn:
    print(f'tenuto.profile: {text}', file=sys.stderr)
    raise SystemExit(code)


class Timer:
    """The times of decoder layers, by hooks. forwards: (tokens, ns by layer) of each forward that is over."""

    def __init__(self, layers: Any, on_gpu: bool) -> None:
        import torch
        self.torch, self.on_gpu, self.layers = torch, on_gpu, len(layers)
        self.marks: list[tuple[int, Any, Any]] = []
        self._start: Any = None
        for layer in layers:
            layer.register_forward_pre_hook(self._before)
            layer.register_forward_hook(self._after)

    def _now(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter_ns()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _before(self, layer: Any, args: Any) -> None:
        self._start = self._now()

    def _after(self, layer: Any, args: Any, out: Any) -> None:
        hidden = out[0] if isinstance(out, tuple) else out
        self.marks.append((hidden.numel() // hidden.shape[-1], self._start, self._now()))

    def take(self) -> Iterator[tuple[int, list[int]]]:
        """The forwards since the last call: tokens, and ns by layer."""
        if self.on_gpu:
            self.torch.cuda.synchronize()
        marks, self.marks = self.marks, []
        for at in range(0, len(marks) - self.layers + 1, self.layers):
            part = marks[at:at + self.layers]
            yield part[0][0], [max(1, int(a.elapsed_time(b) * 1e6) if self.on_gpu else b - a) for _, a, b in part]


def decoder_layers(model: Any, n: int) -> Any:
    """The list of the model's decoder layers."""
    import torch
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == n:
            return module
    stop(USAGE, f'{type(model).__name__} has no list of {n} layers')


def tokens_of(n: int, vocabulary: int) -> list[int]:
    import torch
    return [int(t) for t in torch.randint(3, vocabulary, (n,))]


def grid(args: argparse.Namespace, most: int) -> tuple[list[int], list[int]]:
    """The lengths that were asked for, or those that the model takes. Exits if it does not take what was asked for."""
    inputs = args.inputs or [n for n in INPUTS if n <= most // 2]
    prefixes = args.prefixes or [n for n in PREFIXES if n <= most - inputs[-1]]
    if inputs[-1] + prefixes[-1] > most:
        stop(USAGE, f'{inputs[-1]} input tokens behind {prefixes[-1]} are more than the {most} positions of the model: give shorter --inputs or --prefixes')
    return inputs, prefixes


class Progress:
    def __init__(self, cells: int) -> None:
        self.cells, self.done = cells, 0

    def cell(self, n: int, prefix: int, times: list[list[int]]) -> None:
        self.done += 1
        layer_ms = statistics.median(sum(t) / len(t) for t in times) / 1e6
        print(f'{self.done} of {self.cells}: {n} tokens behind {prefix}: {layer_ms:.3f} ms per layer', file=sys.stderr, flush=True)


def profile(inputs: list[int], prefixes: list[int], repeat: int, prepare: Callable[[int], None], run: Callable[[int, int], list[int]]) -> Rows:
    """prepare: a prefix, the lengths rise; run: the ns of the layers of an input behind it. The first run of a cell warms up and does not count."""
    rows, progress = {}, Progress(len(inputs) * len(prefixes))
    for prefix in prefixes:
        prepare(prefix)
        for n in inputs:
            rows[n, prefix] = [run(n, prefix) for _ in range(repeat + 1)][1:]
            progress.cell(n, prefix, rows[n, prefix])
    return rows


# ---- engines -------------------------------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def importing(remedy: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        stop(ENVIRONMENT, f'{sys.executable}: {error}: {remedy}')


@contextlib.contextmanager
def loading(model: str) -> Iterator[None]:
    """What the engine says of a model that it does not find or take, as one line. Libraries below raise errors of their own classes."""
    try:
        yield
    except Exception as error:
        why = ' '.join(str(error).split()) or type(error).__name__
        if not os.path.exists(model):
            stop(ENVIRONMENT, f'{model}: neither a directory nor to be had from the hub: {why}')
        stop(ENVIRONMENT if isinstance(error, (MemoryError, RuntimeError)) else USAGE, f'{model}: {why}')


@contextlib.contextmanager
def starting(engine: str) -> Iterator[None]:
    """Memory that is too small, for example, as one line."""
    try:
        yield
    except Exception as error:
        stop(ENVIRONMENT, f'{engine} does not start: {" ".join(str(error).split()) or type(error).__name__}')


def profile_hf(args: argparse.Namespace) -> tuple[Rows, str, list[str]]:
    """transformers: rows, the engine with its version, and the fingerprints that tenuto.hf gives."""
    with importing('`pip install .[hf]` brings torch and transformers'):
        import torch
        import transformers
        from tenuto.hf import past
    on_gpu = torch.cuda.is_available()
    auto = transformers.AutoModelForCausalLM
    with loading(args.model), torch.device('cuda' if on_gpu else 'cpu'):
        if args.model.endswith('config.json'):
            config = transformers.AutoConfig.from_pretrained(args.model)
            model = auto.from_config(config, dtype=(config.dtype or torch.float32) if args.dtype == 'auto' else getattr(torch, args.dtype))
        else:
            model = auto.from_pretrained(args.model, dtype=args.dtype)
    model = model.eval().to('cuda' if on_gpu else 'cpu')
    text = model.config.get_text_config(decoder=True)
    inputs, prefixes = grid(args, text.max_position_embeddings)
    timer = Timer(decoder_layers(model, text.num_hidden_layers), on_gpu)
    kv = transformers.DynamicCache(config=text)

    def forward(cache: Any, n: int) -> None:
        with torch.inference_mode():
            model(torch.tensor([tokens_of(n, text.vocab_size)], device=model.device), use_cache=True, logits_to_keep=1, **past(model, cache))

    def prepare(prefix: int) -> None:
        while kv.get_seq_length() < prefix:
            forward(kv, min(prefix - kv.get_seq_length(), 4096))
        list(timer.take())

    def run(n: int, prefix: int) -> list[int]:
        forward(copy.deepcopy(kv), n)
        (_, times), = timer.take()
        return times

    rows = profile(inputs, prefixes, args.repeat, prepare, run)
    more = f'{getattr(text, "_attn_implementation", None) or "attention"} {torch.get_num_threads()}threads'
    name = slack.fingerprint('transformers', args.name, str(model.dtype), text.num_hidden_layers, more=more)
    return rows, f'transformers {transformers.__version__}', [name]


def profile_vllm(args: argparse.Namespace) -> tuple[Rows, str, list[str]]:
    """vLLM in this process, with its own prefix caching: rows, the engine with its version, and the fingerprints that tenuto.vllm gives. Hooks need the eager
    mode; the first guess for an engine in another mode is the same."""
    os.environ['VLLM_ENABLE_V1_MULTIPROCESSING'] = '0'
    with importing('`pip install vllm` brings the engine'):
        import torch
        import vllm
        from vllm.engine.arg_utils import EngineArgs
    model, weights = model_of(args.model), 'dummy' if args.model.endswith('config.json') else 'auto'
    with loading(args.model):
        found = EngineArgs(model=model, dtype=args.dtype, skip_tokenizer_init=True).create_model_config()
    inputs, prefixes = grid(args, found.max_model_len - 1)
    with starting('vLLM'):
        llm = vllm.LLM(model=model, dtype=args.dtype, load_format=weights, skip_tokenizer_init=True, enforce_eager=True,
                       enable_prefix_caching=True, max_model_len=inputs[-1] + prefixes[-1] + 1, max_num_seqs=1, max_num_batched_tokens=max(inputs[-1], 2048))
    config = llm.llm_engine.vllm_config
    n_layers, vocabulary = found.hf_text_config.num_hidden_layers, found.get_vocab_size()
    timer, = llm.apply_model(lambda m: Timer(decoder_layers(m, n_layers), torch.cuda.is_available()))
    prompt: list[int] = []
    one = vllm.SamplingParams(max_tokens=1, detokenize=False)

    def compute(tokens: list[int]) -> None:
        llm.generate([{'prompt_token_ids': tokens}], one, use_tqdm=False)

    def prepare(prefix: int) -> None:
        prompt.extend(tokens_of(prefix - len(prompt), vocabulary))
        if prompt:
            compute(prompt)
        list(timer.take())

    def run(n: int, prefix: int) -> list[int]:
        compute(prompt + tokens_of(n, vocabulary))
        forwards = list(timer.take())
        if [tokens for tokens, _ in forwards] != [n]:
            stop(USAGE, f'vLLM computed {[t for t, _ in forwards]} tokens of {n} behind {prefix}: give --prefixes that are multiples of its block size, '
                        f'{config.cache_config.block_size}, and fit into its KV memory')
        return forwards[0][1]

    rows = profile(inputs, prefixes, args.repeat, prepare, run)
    more = [f'{found.quantization or ""} {config.cache_config.cache_dtype} {mode}'.strip() for mode in ('', 'eager')]
    return rows, f'vllm {vllm.__version__}', [slack.fingerprint('vllm', args.name, str(found.dtype), n_layers, revision=found.revision or '', more=m) for m in more]


# ---- the table -----------------------------------------------------------------------------------------------------------------------------

def model_of(model: str) -> str:
    """What the engine is given: a configuration stands for its directory. Paths are absolute."""
    path = os.path.dirname(model) or '.' if model.endswith('config.json') else model
    return os.path.abspath(path) if os.path.isdir(path) else model


def check_model(model: str) -> None:
    """Exits if a path is none of a model. Another name is the hub's."""
    if model.endswith('config.json'):
        if not os.path.isfile(model):
            stop(USAGE, f'{model}: no such file: give the config.json of a model')
    elif os.path.isdir(model):
        names = os.listdir(model)
        if 'config.json' not in names:
            stop(USAGE, f'{model}: no config.json in this directory: give the directory of a model')
        if not any(name.endswith(WEIGHTS) for name in names):
            stop(USAGE, f'{model}: no weights in this directory: give {os.path.join(model, "config.json")}, and the weights are random')
    elif os.path.isfile(model):
        stop(USAGE, f'{model}: a file: give the directory of a model, or its config.json')
    elif model.startswith(('/', './', '../', '~')) or model.endswith('/') or model in ('.', '..'):
        stop(USAGE, f'{model}: no such directory')


def check_places(out: str | None) -> None:
    """Exits if the table cannot be written."""
    if out:
        directory = os.path.dirname(out) or '.'
        if not os.path.isdir(directory):
            stop(USAGE, f'--out {out}: no such directory: {directory}')
        if os.path.isdir(out):
            stop(USAGE, f'--out {out}: a directory: give a file')
        if not os.access(out if os.path.exists(out) else directory, os.W_OK):
            stop(ENVIRONMENT, f'--out {out}: cannot be written')
    tables = slack.default_directory()
    if os.path.exists(tables) and not os.path.isdir(tables):
        stop(USAGE, f'{tables} is no directory: set TENUTO_SLACK_DIR to one')


def median_cell(runs: list[list[int]], layer: int) -> int:
    """Neither a preemption nor a lucky run changes it."""
    return statistics.median_low(run[layer] for run in runs)


def table_of(rows: Rows, model: str, engine: str) -> str:
    """The text of a table: of repeated timings the median, each layer with its own cells."""
    import torch
    inputs, prefixes = (sorted({key[i] for key in rows}) for i in (0, 1))
    layers = len(next(iter(rows.values()))[0])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else '-'
    name = model if len(os.fsencode(model)) <= NAME_BYTES else '-'
    lines = ['tenuto-slack 2', f'model {name}', f'gpu {gpu[:NAME_BYTES]}', f'engine {engine[:NAME_BYTES]}', time.strftime('when %Y-%m-%dT%H:%M:%SZ', time.gmtime()),
             'how profiled', f'layers {layers}', 'cells layered', ' '.join(map(str, ['inputs', *inputs])), ' '.join(map(str, ['prefixes', *prefixes]))]
    lines += [f'cell {i} {p} {layer} {median_cell(rows[i, p], layer)}' for layer in range(layers) for p in prefixes for i in inputs]
    return '\n'.join(lines) + '\n'


def write_whole(text: str, out: str) -> None:
    """The file appears as a whole or not at all. What is no regular file, such as /dev/stdout, is written as it is."""
    if os.path.exists(out) and not os.path.isfile(out):
        with open(out, 'w', encoding='utf-8') as file:
            file.write(text)
        return
    out = os.path.realpath(out)
    new = f'{out}.new-{os.getpid()}'
    try:
        with open(new, 'x', encoding='utf-8') as file:
            file.write(text)
        os.rename(new, out)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise


def keep(text: str, model: str, names: list[str], out: str | None) -> list[str | None]:
    """Where tenuto.slack looks for them, and in the file that was asked for. A space reads it first, so that what it does not take is not written."""
    layers = int(text.split('\nlayers ')[1].split()[0])
    with tenuto.Cache(host_bytes=1 << 20) as cache:
        space = cache.space(model, tenuto.Geometry.raw(layers, 4096))
        space.slack(text)
        paths = [slack.Tables().keep(space, name) for name in names]
        if out:
            try:
                write_whole(space.slack(), out)
            except OSError as error:
                stop(ENVIRONMENT, f'--out {out}: {error.strerror}')
        return paths


def lengths(least: int) -> Callable[[str], list[int]]:
    def read(text: str) -> list[int]:
        try:
            found = [int(n) for n in text.split(',')]
        except ValueError:
            found = []
        if not found or len(found) > MOST_LENGTHS or found != sorted(set(found)) or found[0] < least or found[-1] > MOST_TOKENS:
            raise argparse.ArgumentTypeError(f'{text!r}: write 1 to {MOST_LENGTHS} rising numbers of tokens from {least} on, such as {least},64,1024')
        return found
    return read


def name(text: str) -> str:
    if not text or not text.isprintable() or text.strip() != text:
        raise argparse.ArgumentTypeError(f'{text!r}: write the name that the engine uses for the model')
    return text


def times(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f'{text!r}: write a number from 1 to 1000')
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog='tenuto.profile', description='Times each layer of a model in its engine, and makes a slack table of it.')
    parser.add_argument('model', metavar='MODEL', help='a name, a directory, or a config.json: then the weights are random')
    parser.add_argument('--engine', choices=('hf', 'vllm'), required=True, help='transformers, or vLLM')
    parser.add_argument('--name', type=name, help="the name that the engine uses for the model (MODEL as given, of a directory the absolute path)")
    parser.add_argument('--dtype', choices=('auto', 'float32', 'float16', 'bfloat16'), default='auto', help="as it is given to the engine (%(default)s)")
    parser.add_argument('--inputs', type=lengths(1), help='input tokens: 1,64,256,1024,4096, as far as the model goes')
    parser.add_argument('--prefixes', type=lengths(0), help='prefix tokens: 0,1024,4096,16384, as far as the model goes')
    parser.add_argument('--repeat', type=times, default=5, help='timings per pair of lengths (%(default)s)')
    parser.add_argument('-o', '--out', metavar='FILE', help='write the table there, too')
    args = parser.parse_args()
    check_model(args.model)
    check_places(args.out)
    args.name = args.name or model_of(args.model)
    rows, engine, names = (profile_hf if args.engine == 'hf' else profile_vllm)(args)
    for path in keep(table_of(rows, args.name, engine), args.name, names, args.out):
        if not path:
            sys.exit(ENVIRONMENT)
        print(path)
    print(f'the next start of {args.engine} with the model name {args.name} uses the table (slack: auto)', file=sys.stderr)


if __name__ == '__main__':
    main()
