# SPDX-License-Identifier: Apache-2.0
"""Look-ups that ask tiers which do not answer at once, as an object store: what other nodes have stored is found only so.

Nothing here waits. A request is asked for once: a scheduler asks `waits` in each of its steps until that says no, and then looks up as ever. Where nobody has
to be asked, that is at once.
"""
from dataclasses import dataclass

from tenuto import _core
from tenuto.vllm.store import now

#: Look-ups of an engine that are under way at once. Others wait for their turn, and for their deadline.
AT_ONCE = 16


@dataclass
class Asked:
    """until: the deadline. query: None before the look-up has begun, and once it is over."""
    until: float
    query: object = None
    over: bool = False


class Remote:
    """`timeout_s`: how long a request waits at most; 0: nobody is asked."""

    def __init__(self, timeout_s):
        self.timeout_s, self._asked, self.late = timeout_s, {}, 0

    def has(self, name):
        """Whether a request has been asked for."""
        return name in self._asked

    def waits(self, name, spaces, keys):
        """Whether a tier has still to answer which of a request's keys it has. Raises what the cache raises, and the request waits no more."""
        asked = self._asked.setdefault(name, Asked(now() + self.timeout_s))
        if asked.over:
            return False
        try:
            if asked.query is None and self._under_way() < AT_ONCE:
                asked.query = _core.match_begin(spaces, keys, max(0.0, asked.until - now()))
            answer = asked.query.poll() if asked.query is not None else None
        except _core.Again:
            answer = None  # too many look-ups are under way in the cache
        except BaseException:
            self._end(asked)
            raise
        if answer is None and now() < asked.until:
            return True
        self.late += now() >= asked.until
        self._end(asked)
        return False

    def _under_way(self):
        return sum(asked.query is not None for asked in self._asked.values())

    @staticmethod
    def _end(asked):
        asked.query, asked.over = None, True  # which cancels a look-up that is under way

    def forget(self, name):
        """A request has ended."""
        self._asked.pop(name, None)

    def clear(self):
        """The cache is another one, or its spaces are: requests that still wait ask again."""
        self._asked.clear()
