# SPDX-License-Identifier: Apache-2.0
"""What the connector's side in a worker tells Tenuto's scheduler of the engine: how many tokens a step computes, when that begins, and for how long no load will come.

A load can begin only when a step begins. So none comes before the step that runs now has ended, and how long that takes is learned from the steps before. Of a step with loads
the cache sees the times of layers itself, between the waits for them (Worker.wait_layer). Of another step one layer is timed here, another one each time.
"""
import time

from tenuto import _core

#: As _core.phase counts them.
PREFILL, DECODE = 0, 1
#: The part of a longer step by which an expected time grows. A shorter step counts at once: a time that is announced too long delays the next load.
SLOWER = 1 / 8


class Feed:
    """`wanted`: whether anything is told."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.number, self.begun, self.kind = 0, 0, None
        self.timed, self.layer_begun, self.tokens, self.prefix = 0, 0, 0, None
        self.times = {}  # of steps, in ns, by phase and size

    def begin(self, cache, step):
        """A step is bound, which vLLM does before the forward pass. It calls start_load_kv behind that pass where no load is waited for: too late for this."""
        if not self.wanted or step.number == self.number:
            return
        self.number, self.begun = step.number, time.monotonic_ns()
        phase = DECODE if step.decode else PREFILL
        waits = any(not blocks.is_async for blocks in step.loads)
        self.kind = (phase, step.tokens.bit_length()) if step.tokens and not waits else None
        self.tokens, self.prefix, self.layer_begun = step.tokens, step.prefix, 0
        expected = self.expected()
        try:
            if cache is not None and (waits or expected):
                _core.phase(cache, PREFILL if waits else phase, 0 if waits else expected)
        except OSError:
            pass  # a hint: the next load or save finds out what has become of the cache

    def expected(self):
        """How long the step that runs now takes, in ns; 0: not known."""
        return self.times.get(self.kind, 0)

    def of_load(self, step, is_async):
        """Options of a load that begins with a step. All tokens of the step are computed on each layer, and not only those behind the load. An asynchronous load has no layer
        times: it is wanted as a whole, when the step that runs beside it has ended."""
        if not self.wanted or not step.tokens or step.number != self.number:
            return {}
        if not is_async:
            return {"input_tokens": step.tokens, "start_ns": self.begun}
        return {"start_ns": self.begun + self.expected()}

    def layer(self, space, layer, layers):
        """The step begins to compute a layer."""
        if self.kind is None or self.prefix is None or layers < 2:
            return
        if layer == self.timed:
            self.layer_begun = time.monotonic_ns()
        elif layer == self.timed + 1 and self.layer_begun:
            space.observe(self.tokens, self.prefix, self.timed, time.monotonic_ns() - self.layer_begun)
            self.timed, self.layer_begun = (self.timed + 1) % (layers - 1), 0

    def end(self):
        """The step has computed. One that waited for loads says nothing of how long others take."""
        if self.kind is None:
            return
        took, before = time.monotonic_ns() - self.begun, self.expected()
        self.times[self.kind] = took if not before or took < before else before + int((took - before) * SLOWER)
        self.kind = None
