# SPDX-License-Identifier: Apache-2.0
"""The storage backend, which changes restored pages after they were verified: the engine's tokens must change, or it does not use them."""
import torch

from tenuto.sglang import TenutoStorage


class CanaryStorage(TenutoStorage):
    def batch_get_v1(self, keys, host_indices, extra_info=None):
        good = super().batch_get_v1(keys, host_indices, extra_info)
        pool = self.mem_pool_host
        for i, ok in enumerate(good):
            if ok:
                at = int(host_indices[i * pool.page_size])
                page = pool.get_data_page(at, flat=True).clone()
                pool.set_from_flat_data_page(at, torch.flip(page.flatten(), [0]))
        return good
