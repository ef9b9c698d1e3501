# SPDX-License-Identifier: Apache-2.0
"""Loads and saves in an asyncio loop, and as concurrent futures."""
import asyncio

import tenuto
from case import LAYERS, Case, main
from tenuto import futures


class Futures(Case):
    def test_an_event_loop_waits_for_layers(self):
        cache = self.open()
        space, kv, pool = self.raw(cache, 64)
        keys = self.stored(space, kv, pool, 8)

        async def restore(loop, first):
            load = space.load(keys, pool, range(first, first + 8), tag=loop.tag())
            good = [await loop.layer(load, layer) for layer in range(LAYERS)]
            return good, await loop.ended(load)

        async def both():
            async with futures.Loop(cache) as loop:
                return await asyncio.wait_for(asyncio.gather(*(restore(loop, first) for first in (8, 16, 24))), 60)

        self.assertEqual(asyncio.run(both()), [([8] * LAYERS, 8)] * 3)
        size = 8 * space.geometry.block_bytes
        for first in range(1, 4):
            self.assertEqual(kv[first * size:][:size], kv[:size])

    def test_an_event_loop_goes_on_while_a_save_waits(self):
        cache = self.open()
        space, _, pool = self.raw(cache)
        event = cache.event()

        async def saved():
            async with futures.Loop(cache) as loop:
                save = space.save(space.keys([1]), pool, [0], tag=loop.tag())
                for layer in range(LAYERS):
                    save.layer(layer, event, 1)
                save.commit()
                end = asyncio.ensure_future(loop.ended(save))
                await asyncio.sleep(0)
                self.assertFalse(end.done())
                event.raise_to(1)
                return await asyncio.wait_for(end, 60)

        self.assertEqual(asyncio.run(saved()).stored, 1)

    def test_a_thread_resolves_futures(self):
        cache = self.open()
        space, kv, pool = self.raw(cache, 32)
        keys = self.stored(space, kv, pool)
        watcher = futures.Watcher(cache)
        self.addCleanup(watcher.close)
        loads = [watcher.future(space.load(keys, pool, range(first, first + 4), tag=watcher.tag())) for first in (4, 8, 12)]
        self.assertEqual([f.result(60) for f in loads], [4, 4, 4])
        save = space.save(space.keys([9]), pool, [20], tag=watcher.tag())
        for layer in range(LAYERS):
            save.layer(layer)
        save.commit()
        self.assertEqual(watcher.future(save).result(60).stored, 1)
        never = space.save(space.keys([10]), pool, [21], tag=watcher.tag())
        self.assertIsInstance(watcher.future(never).exception(60), tenuto.InvalidValue)  # not committed
        never.abort()
        never.end()


if __name__ == '__main__':
    main(__name__)
