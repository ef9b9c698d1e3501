# SPDX-License-Identifier: Apache-2.0
"""Adapters that change what they have loaded, after it was verified: if the tokens stay the same, restored KV is not used, and no test here means anything."""
from tenuto.vllm.connector import TenutoConnector
from tenuto.vllm.tier import TenutoTier
from tenuto.vllm.worker import Worker


class CanaryWorker(Worker):
    def wait_layer(self, name):
        super().wait_layer(name)
        for load in self.loads:
            group, layer = self.where[name]
            if group in load.parts and layer == 0:
                for page in load.parts[group][2]:
                    self.tensors[name][page].neg_()


    def _judge(self, load):
        """Of a load that only its request waits for: before vLLM is told."""
        for group, (_, _, pages) in load.parts.items() if load.blocks.is_async and load.good else ():
            for name in (name for name, where in self.where.items() if where == (group, 0)):
                for page in pages:
                    self.tensors[name][page].neg_()
        super()._judge(load)


class CanaryConnector(TenutoConnector):
    worker_class = CanaryWorker


class CanaryTier(TenutoTier):
    def _over(self, job):
        if not job.store:
            flat = self._primary_kv_view.cast("B")
            for i in job.good:
                at = job.rows[i] * self._row_bytes
                for b in range(at + 3, at + self._row_bytes, 4):
                    flat[b] ^= 0x80
            flat.release()
        super()._over(job)
