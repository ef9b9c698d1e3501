# SPDX-License-Identifier: Apache-2.0
"""vLLM's tiered offloading on a machine without a GPU: everything is vLLM's own but the copy between KV pages and host memory, which there is CUDA's.

    "spec_name": "CpuTiering", "spec_module_path": "cpu_tiering"
"""
import ctypes
import time

import numpy as np
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.gpu_worker import compute_sub_block_ptrs
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


def pieces(count, factor, index):
    """Blocks of `factor` pages that `count` pages lie in, the first of which is page `index`."""
    return -(-(count + index % factor) // factor)


class CopyWorker(OffloadingWorker):
    """Copies at once, in the caller's thread."""

    def __init__(self, caches, factor, region):
        self.refs, self.factor, self.region, self.results = caches.group_data_refs, factor, region, []
        self.device = [c.tensor.view(torch.int8).view((-1, c.page_size_bytes)) for c in caches.tensors]
        self.host = [region.create_next_worker_view(c.page_size_bytes * factor) for c in caches.tensors]

    def _copy(self, job, source, target, store):
        begun, moved, at_source, at_target = time.perf_counter(), 0, 0, 0
        sides = (self.device, self.host) if store else (self.host, self.device)
        factors = (1, self.factor) if store else (self.factor, 1)
        device = source if store else target
        for group, (count, index) in enumerate(zip(device.group_sizes, device.block_indices)):
            if not count:
                continue
            n = [pieces(count, f, index) for f in factors]
            for ref in self.refs[group]:
                addresses = []
                for spec, at, k, f, side in ((source, at_source, n[0], factors[0], sides[0]), (target, at_target, n[1], factors[1], sides[1])):
                    out = np.empty(count, np.uint64)
                    compute_sub_block_ptrs(spec.block_ids[at:at + k], f, out, side[ref.tensor_idx], skip_count=index % f)
                    addresses.append(out)
                for a, b in zip(*addresses):
                    ctypes.memmove(int(b), int(a), ref.page_size_bytes)
                    moved += ref.page_size_bytes
            at_source, at_target = at_source + n[0], at_target + n[1]
        self.results.append(TransferResult(job_id=job, success=True, transfer_size=moved, transfer_time=time.perf_counter() - begun))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, False)

    def get_finished(self):
        results, self.results = self.results, []
        return results

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.device, self.host = [], []
        self.region.cleanup()


class CpuTiering(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(engine_id=self._engine_id, num_chunks=self.num_chunks, rank=self.config.parallel.rank,
                                         kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker)
            self._worker = CopyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
