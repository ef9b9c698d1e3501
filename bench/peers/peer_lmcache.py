# SPDX-License-Identifier: Apache-2.0
"""LMCache's L2 adapters as its multi-process server drives them: submitted in batches, completed by eventfd. options: the adapter's JSON, {dir} is replaced."""
import argparse
import json

import torch
import worker
from lmcache.cli.commands.bench.l2_adapter_bench import data, runner
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

TIMEOUT = 60.0


class Peer:
    def __init__(self, directory, blocks, size, memory, options):
        spec = json.dumps(options).replace('{dir}', directory)
        if options['type'] == 'raw_block':  # a file in the place of the device
            with open(json.loads(spec)['device_path'], 'ab') as f:
                f.truncate(options['capacity_bytes'])
        adapters = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[spec])).adapters
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self.adapter = create_l2_adapter(adapters[0], l1_memory_desc=data.create_l1_memory_desc(whole, align_bytes=4096))
        self.keys = data.make_object_keys(blocks)
        self.objects = [TensorMemoryObj(raw_data=whole[i * size:(i + 1) * size], parent_allocator=None,
                                        metadata=MemoryObjMetadata(shape=torch.Size([size]), dtype=torch.uint8, address=i * size, phy_size=size,
                                                                   fmt=MemoryFormat.KV_2LTD, ref_count=1)) for i in range(blocks)]

    def save(self, indices):
        parts = worker.batches(indices)
        tasks = [self.adapter.submit_store_task([self.keys[i] for i in p], [self.objects[i] for i in p]) for p in parts]
        ended = runner._wait_store_finished(self.adapter, tasks, TIMEOUT)
        if len(ended) < len(tasks):
            raise TimeoutError(f'{len(tasks) - len(ended)} of {len(tasks)} stores had not ended after {TIMEOUT:.0f} s')
        good = [i for p, t in zip(parts, tasks) if ended[t].is_successful() for i in p]
        if len(good) < len(indices):
            raise OSError(f'{len(indices) - len(good)} blocks in stores that failed')
        return good

    def load(self, indices):
        parts = worker.batches(indices)
        tasks = [self.adapter.submit_load_task([self.keys[i] for i in p], [self.objects[i] for i in p]) for p in parts]
        ended = runner._wait_load_finished(self.adapter, tasks, TIMEOUT)
        if len(ended) < len(tasks):
            raise TimeoutError(f'{len(tasks) - len(ended)} of {len(tasks)} loads had not ended after {TIMEOUT:.0f} s')
        return [i for p, t in zip(parts, tasks) for at, i in enumerate(p) if ended[t].test(at)]

    def look_up(self, indices):
        keys = [self.keys[i] for i in indices]
        task = self.adapter.submit_lookup_and_lock_task(keys, {0: MemoryLayoutDesc(shapes=[], dtypes=[])})
        found = runner._wait_lookup_finished(self.adapter, [task], TIMEOUT)
        self.adapter.submit_unlock(keys)
        return found[task].popcount() if task in found else 0

    def close(self):
        self.adapter.close()


if __name__ == '__main__':
    worker.run(Peer)
