# SPDX-License-Identifier: Apache-2.0
"""vLLM's fs tier, driven as its tiering manager does: jobs submitted, finished jobs collected. options: n_read_threads, n_write_threads."""
import time

import numpy as np
import worker
from vllm.v1.kv_offload import config as c
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

TIMEOUT = 60.0


class Peer:
    def __init__(self, directory, blocks, size, memory, options):
        known = c.OffloadingParallelConfig.__dataclass_fields__
        parallel = dict(rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0, data_parallel_size=1,
                        data_parallel_rank_local=None, is_parallelism_agnostic=False)
        spec = TieringOffloadingSpec(c.OffloadingConfig(
            groups=(c.OffloadingGroupConfig(tokens_per_block=16, layer_names=('l0', 'l1'), group_id=0),), worker_kv_bytes_per_block=size,
            enable_kv_cache_events=False, extra_config={'cpu_bytes_to_use': 4 * size, 'secondary_tiers': []}, engine_id=f'peers{time.time_ns()}',
            model=c.OffloadingModelConfig('peers', 'bfloat16'), cache=c.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=c.OffloadingParallelConfig(**{k: v for k, v in parallel.items() if k in known})))
        rows = memoryview(np.frombuffer(memory, dtype=np.int8).reshape(blocks, size))
        self.tier = FileSystemTierManager(spec, rows, 'fs', directory, **options)
        self.keys = [make_offload_key(i.to_bytes(32, 'big'), 0) for i in range(blocks)]
        self.context, self.jobs = ReqContext('peers'), 0

    def _run(self, indices, submit, promotion):
        parts = {}
        for part in worker.batches(indices):
            self.jobs += 1
            parts[self.jobs] = part
            submit(TransferJob(self.jobs, [self.keys[i] for i in part], np.array(part, dtype=np.int32), promotion, self.context))
        good, end = [], time.monotonic() + TIMEOUT
        while parts:
            for job in self.tier.get_finished_jobs():
                part = parts.pop(job.job_id)
                there = set(job.successful_keys or ())
                good += part if job.success else [i for i in part if self.keys[i] in there]
            if time.monotonic() > end:
                raise TimeoutError(f'{len(parts)} jobs had not ended after {TIMEOUT:.0f} s')
            time.sleep(0.0001)
        return good

    def save(self, indices):
        good = self._run(indices, self.tier.submit_store, False)
        if len(good) < len(indices):
            raise OSError(f'{len(indices) - len(good)} blocks in jobs that failed')
        return good

    def load(self, indices):
        return self._run(indices, self.tier.submit_load, True)

    def look_up(self, indices):
        """What its look-up thread runs for a batch, without the wait for that thread."""
        return sum(self.tier._lookup_manager.batch_lookup([self.keys[i] for i in indices], self.context))

    def close(self):
        self.tier.shutdown()


if __name__ == '__main__':
    worker.run(Peer)
