#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether what comes back is what went, bit for bit, through each way that tensors of the GPU take.

First test-cuda-device. Then tensors in the layouts of engines, saved and loaded through Python: in a cache of this process, from its host tier and from disk, and in
one of another process; and a model whose prompt tenuto.hf keeps. At last test-cuda-device again under compute-sanitizer, which some machines refuse.
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
from transformers.cache_utils import DynamicCache

import tenuto
from tenuto.hf import Prefixes, past

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
        if part.args.pack:
            cufile(part, directory)
    sanitizer = shutil.which('compute-sanitizer') or shutil.which('compute-sanitizer', path='/usr/local/cuda/bin')
    if part.args.pack and sanitizer and part.left() > 20:
        status, told = device_test(part, sanitizer, '--error-exitcode', '9', limit=part.left() - 5)
        part.row('compute-sanitizer', status=status, **told)
    part.end()


if __name__ == '__main__':
    main()
