#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether what comes back is what went, bit for bit, through each way that tensors of the GPU take.

First test-cuda-device. Then tensors in the layouts of engines, saved and loaded through Python: in a cache of this process, from its host tier and from disk, and in
one of another process; a model whose prompt tenuto.hf keeps; and the connector of vLLM, below an engine that computes next to nothing. At last test-cuda-device again under compute-sanitizer, which some machines refuse.
"""
import contextlib
import os
import shutil
import subprocess
import sys

import clock
import model as models
import scratch
import torch
from transformers.cache_utils import Cache, DynamicCache

import tenuto
from tenuto.hf import Loading, Prefixes, RestoredLayer, Shorter, past
from tenuto.vllm.store import Config

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python', 'tests'))
import vllm_engine  # noqa: E402

LAYERS, PAGES, TOKENS, HEADS, DIM = 4, 64, 16, 8, 128
PAGE = (TOKENS, HEADS, DIM)
# By name: axes, shape of a tensor, how many of them (0: it is no sequence), and how many blocks are on the way at once.
LAYOUTS = {'vLLM': ('pn', (2, PAGES, *PAGE), LAYERS, 16), 'FlashInfer': ('np', (PAGES, 2, *PAGE), LAYERS, 16), 'cross-layer': ('nlp', (PAGES, LAYERS, 2, *PAGE), 0, 16),
           'in batches': ('pn', (2, PAGES, *PAGE), LAYERS, 3)}
OWNER = '''
import sys, tenuto
with tenuto.Cache(host_bytes=256 << 20, serve=sys.argv[1]) as cache:
    print('ready', flush=True)
    sys.stdin.read()
'''


def device_test(part, *before, limit):
    """The exit status of test-cuda-device, and what it has said."""
    status, told, error = part.program('test-cuda-device', os.path.join(os.environ['TENUTO_PLUGIN_PATH'], 'libtenuto_cuda.so'), before=before, limit=limit)
    checks, other = [c for c in told if 'ok' in c], [c for c in told if 'ok' not in c]
    return status, {'checks': [c['check'] for c in checks if c['ok']], 'bad': [c for c in checks if not c['ok']], 'other': other, 'error': error}


def cufile(part, directory):
    """What cuFile does here, if anything: its plugin is packed where it was built, and the library is torch's. Reported, and fails nothing: few machines have all of it."""
    if not os.path.exists(os.path.join(part.args.pack, 'bin', 'test-gds-device')):
        return
    packages = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), 'nvidia')
    libraries = [os.path.join(packages, *of, 'lib') for of in (('cu13',), ('cufile',))]
    plugins = [os.path.join(os.environ['TENUTO_PLUGIN_PATH'], f'libtenuto_{name}.so') for name in ('cuda', 'gds')]
    status, told, error = part.program('test-gds-device', *plugins, directory, limit=45, CUFILE_LOGFILE_PATH=os.path.join(directory, 'cufile.log'),
                                       LD_LIBRARY_PATH=':'.join(filter(None, [os.path.join(part.args.pack, 'lib'), *libraries, os.environ.get('LD_LIBRARY_PATH')])))
    part.row('cufile', status=status, told=told, error=error)


def heap(part):
    """The symmetric heap with its payload on the GPU, between two processes."""
    if not os.path.exists(os.path.join(part.args.pack, 'bin', 'test-heap-device')):
        return
    status, _, error = part.program('test-heap-device', limit=45, TN_HEAP_DRIVER='cuda')
    part.check('symmetric heap', status == 0, status=status, error=error)


def tensors(part, axes, shape, count):
    """Random bits, so that a bit that changes is seen; as the engine's tensors, and a copy of them."""
    made = [torch.randint(-1 << 15, 1 << 15, shape, dtype=torch.int16, device=part.device.name) for _ in range(count or 1)]
    views = [t.view(torch.bfloat16) for t in made]
    return made, [t.clone() for t in made], views if count else views[0]


def layouts(part, cache, where):
    geometry = tenuto.Geometry(LAYERS, tenuto.kv_planes(HEADS, DIM, 16), TOKENS, 4)
    for name, (axes, shape, count, staged) in LAYOUTS.items():
        made, kept, arrays = tensors(part, axes, shape, count)
        part.device.wait()
        with contextlib.closing(cache.pool(geometry, arrays, axes, stage_bytes=staged * geometry.block_bytes)) as pool:
            space, pages = cache.space(f'{where} {name}', geometry, kv_dtype='bf16'), torch.randperm(PAGES).tolist()
            keys = space.keys(range(PAGES * TOKENS))
            saved = space.save(keys, pool, pages).finish()
            if where == 'disk':
                cache.flush()
            for tensor in made:
                tensor.zero_()
            part.device.wait()
            good = space.load(keys, pool, pages).finish()
        part.check('tensors', good == PAGES // 4 and all(map(torch.equal, made, kept)), where=where, layout=name, blocks=good, saved=str(tuple(saved)))


@contextlib.contextmanager
def owned(directory):
    """A cache that another process owns."""
    socket = os.path.join(directory, 'socket')
    with subprocess.Popen([sys.executable, '-c', OWNER, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        try:
            owner.stdout.readline()
            with tenuto.attach(socket) as cache:
                yield cache
        finally:
            owner.stdin.close()


def model(part, cache):
    """A prompt is computed and saved, restored in both ways, and goes on; by the same bits."""
    m, _ = models.made(part.device.name, True)
    store = Prefixes(cache, m.config, 'correctness', dtype=m.dtype, plan='off', slack='off')
    ids = torch.randint(512, (1, 1000), generator=torch.Generator().manual_seed(3)).to(part.device.name)
    cut, logits = 768, []
    kv = DynamicCache(config=m.config)
    saving = store.saving(ids[:, :cut], kv)
    m(input_ids=ids[:, :cut], **past(m, kv), use_cache=True, logits_to_keep=1)
    saved, restored = saving.finish(), []
    logits.append(m(input_ids=ids[:, cut:], **past(m, kv), use_cache=True).logits)
    for lazy in (True, False):
        kv, n = store.restore(ids, lazy=lazy)
        restored.append(n)
        logits.append(m(input_ids=ids[:, n:], **past(m, kv), use_cache=True).logits)
    where = store.stage(1, device=ids.device).tensor.device  # host memory if the GPU's was refused
    part.check('tenuto.hf', restored == [cut, cut] and all(torch.equal(logits[0], other) for other in logits[1:]) and where == ids.device, restored=restored,
               saved=str(tuple(saved)), pages_on=str(where))


class Counted:
    """A load, and which layers the stream and the host have waited for."""

    def __init__(self, load):
        self._load, self.stream, self.host = load, [], []

    def stream_wait(self, stream, layer):
        self._load.stream_wait(stream, layer)
        self.stream.append(layer)

    def wait(self, layer=None):
        self.host.append(layer)
        return self._load.wait(layer)

    def __getattr__(self, name):
        return getattr(self._load, name)


def streams(part, cache):
    """A stream waits for all layers of a prefix but the last one. What is computed on a block that never came is not kept."""
    m, _ = models.made(part.device.name, True)
    store = Prefixes(cache, m.config, 'streams', dtype=m.dtype, plan='off', slack='off')
    ids = torch.randint(512, (1, 1300), generator=torch.Generator().manual_seed(4)).to(part.device.name)
    there = store.prefill(m, ids[:, :769])[0].get_seq_length()
    for more in (0, 1):  # blocks that are asked for though they are not there
        found = store.space.match(store.keys(ids), pin=True)
        loading = Loading(store, store.space, store.keys(ids), found.blocks + more, found, 0, ids.device)
        load = loading.load = Counted(loading.load)
        kv = Cache(layers=[RestoredLayer(loading, i) for i in range(store.layers)])
        saving, good = store.saving(ids, kv, there + more * store.block_tokens), None
        try:
            m(input_ids=ids[:, kv.get_seq_length():], **past(m, kv), use_cache=True, logits_to_keep=1)
        except Shorter as short:
            good = short.good
        kept = saving.finish() if more else saving.abort()
        by_stream = list(range(store.layers - 1)) if part.device.cuda else []
        part.check('streams', (good, store.match(ids)) == (there if more else None, there) and load.stream == by_stream and not (kept and kept.stored), missing=more,
                   restored=there, good_tokens=good, by_stream=load.stream, by_host=load.host, found=store.match(ids))
    store.close()


class Layer:
    """A layer's pages for vllm_engine, whose tensors these are. On a GPU the stream is late with each of them."""

    def __init__(self, device, blocks):
        self.device_of, self.tensor = device, torch.zeros((blocks, vllm_engine.SIZE, vllm_engine.BYTES // vllm_engine.SIZE), dtype=torch.uint8, device=device.name)

    def __getattr__(self, name):
        return getattr(self.tensor, name)

    def get(self, i):
        return self.tensor[i].view(-1)[:vllm_engine.KNOWN].cpu().numpy().tobytes()

    def put(self, i, data):
        source = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if self.device_of.cuda:
            torch.cuda._sleep(200000)
            source = source.pin_memory()
        self.tensor[i].view(-1)[:vllm_engine.KNOWN].copy_(source, non_blocking=True)


def connector(part, directory):
    """Both sides of vLLM's connector, on pages of the device. vLLM itself is stood in for."""
    config = Config({'path': directory, 'serve': os.path.join(directory, 'vllm'), 'disk_bytes': '64MiB', 'host_bytes': '16MiB'})
    for layerwise in (True, False):
        engine = vllm_engine.Engine(config, layerwise=layerwise, layers=4, tensor=lambda blocks: Layer(part.device, blocks))
        try:
            found = [engine.run(*[(f'{layerwise} {seed}', blocks) for seed in range(4)]) for blocks in (4, 8, 8)]
        finally:
            engine.close()
        part.check('vLLM connector', found == [[0] * 4, [4] * 4, [8] * 4] and not engine.wrong and not engine.said, layerwise=layerwise, found=found, wrong=engine.wrong,
                   said=engine.said)


def main():
    part = clock.Part(__doc__.split('\n')[0])
    if part.args.pack:
        with part.guarded('test-cuda-device'):
            status, told = device_test(part, limit=60)
            part.check('test-cuda-device', status == 0, status=status, **told)
    torch.manual_seed(5)
    with torch.no_grad(), scratch.directory() as directory:
        with part.guarded('host'), tenuto.Cache(host_bytes=256 << 20) as cache:
            layouts(part, cache, 'host')
        with part.guarded('disk'), tenuto.Cache(directory, disk_bytes=256 << 20, host_bytes=0) as cache:
            layouts(part, cache, 'disk')
        with part.guarded('attached'), owned(directory) as cache:
            layouts(part, cache, 'attached')
        with part.guarded('tenuto.hf'), tenuto.Cache(host_bytes=256 << 20) as cache:
            model(part, cache)
        with part.guarded('streams'), tenuto.Cache(host_bytes=256 << 20) as cache:
            streams(part, cache)
        with part.guarded('vLLM connector'):
            connector(part, directory)
        if part.args.pack:
            heap(part)
            cufile(part, directory)
    sanitizer = shutil.which('compute-sanitizer') or shutil.which('compute-sanitizer', path='/usr/local/cuda/bin')
    if part.args.pack and sanitizer and part.left() > 20:
        status, told = device_test(part, sanitizer, '--error-exitcode', '9', limit=part.left() - 5)
        part.row('compute-sanitizer', status=status, **told)
    part.end()


if __name__ == '__main__':
    main()
