# SPDX-License-Identifier: Apache-2.0
"""vLLM on two nodes that know each other's blocks by a store of objects. Each function is a scenario of run.py."""
import os
import signal
import time

from checks import canary, connector, hits, need, same, tier
from nodes import Nodes

#: Long enough for a machine that runs two engines on two CPUs.
PATIENCE = {"retry_s": 0.2, "remote_timeout_s": 10}


def counted(result, *names):
    return [int(result["metrics"].get(f"vllm:tenuto_{name}", 0)) for name in names]


def shared(lab, make):
    """A's engine stays while B's lives, and goes on when A's disk was wiped."""
    with Nodes(lab) as nodes:
        nodes.start("a")
        nodes.start("b")
        pause = os.path.join(lab.dir, "node-a")
        name = lab.begin(make(nodes.socket("a")), rounds=2, reset=True, pause=pause)
        lab.wait_file(pause + ".0")
        objects = nodes.settled()
        other = lab.live(make(nodes.socket("b")))
        nodes.wipe("a")
        time.sleep(2)  # until the engine has its cache again
        os.unlink(pause + ".0")
        own = lab.end(name)
        cold, again = (sum(r["cached"]) for r in own["rounds"])
        need(hits(other) > 0, "B has found nothing of A's")
        need(again > cold, f"A has found nothing after its disk was wiped: {cold:,} tokens were cached cold, {again:,} then")
        return objects, other, f"{same(lab, other) + same(lab, own)} answers equal; {objects} blocks in the store; B, another node, found {hits(other):,} tokens", again - cold


def scenario_remote(lab):
    _, other, text, again = shared(lab, lambda socket: connector(socket=socket, **PATIENCE))
    blocks, asked, late = counted(other, "remote_blocks", "asked_requests", "late_requests")
    need(blocks > 0 and late == 0, f"{blocks} blocks came from the store, {late} of {asked} requests were late")
    return f"{text} in {blocks} blocks; A {again:,} after its disk was wiped"


def scenario_remote_async(lab):
    _, _, text, again = shared(lab, lambda socket: connector(socket=socket, load="async", **PATIENCE))
    return f"{text}; A {again:,} after its disk was wiped"


def scenario_remote_processes(lab):
    """Scheduler and worker of B in processes of their own."""
    with Nodes(lab) as nodes:
        computed(lab, nodes)
        other = lab.live(connector(socket=nodes.socket("b"), **PATIENCE), env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
        need(hits(other) > 0, "B has found nothing of A's")
        return f"{same(lab, other)} answers equal; B found {hits(other):,} tokens"


def scenario_remote_tier(lab):
    """What vLLM's own host memory has hides what A's cache has lost: B alone."""
    with Nodes(lab) as nodes:
        nodes.start("a")
        nodes.start("b")
        first = lab.live(tier(socket=nodes.socket("a"), **PATIENCE))
        objects, other = nodes.settled(), lab.live(tier(socket=nodes.socket("b"), **PATIENCE))
        loaded, = counted(other, "tier_loaded_chunks")
        need(loaded > 0, "B's tier has loaded nothing of A's")
        return f"{same(lab, first) + same(lab, other)} answers equal; {objects} chunks in the store; B loaded {loaded} of them, {hits(other):,} tokens"


def computed(lab, nodes):
    """A has computed all prompts and is gone; B has nothing yet. How many blocks the store has."""
    nodes.start("a")
    lab.live(connector(socket=nodes.socket("a"), **PATIENCE))
    objects = nodes.settled()
    nodes.stop("a")
    nodes.start("b")
    return objects


def scenario_remote_canary(lab):
    """Restored KV is used: if it is changed after it was verified, tokens are others. And bytes that were changed in the store are not."""
    with Nodes(lab) as nodes:
        computed(lab, nodes)
        changed = lab.live(canary(connector(socket=nodes.socket("b"), **PATIENCE)))
        differ = sum(a != b for a, b in zip(changed["rounds"][0]["tokens"], lab.reference))
        need(differ > 0, "restored bytes were changed, and the tokens are the same: restored KV is not used")
        return f"KV from the store changed on purpose after it was verified: {differ} of {len(lab.reference)} answers differ"


def scenario_remote_flip(lab):
    with Nodes(lab) as nodes:
        computed(lab, nodes)
        objects = nodes.change()
        other = lab.live(connector(socket=nodes.socket("b"), **PATIENCE))
        failed, loaded = counted(other, "load_failed_blocks", "remote_blocks")
        told = nodes.log("b").count("is damaged")
        need(failed > 0 and told > 0, f"{failed} changed blocks were noticed by the engine, {told} by tenutod")
        return f"{same(lab, other)} answers equal; all {objects} objects were changed; {loaded} blocks were found, {failed} of them not good and computed again"


def scenario_remote_kill(lab):
    """kill -9 of the store in the middle of the answer to a GET: once each third of the prompts, with eight at a time."""
    reference, n, failed, found = lab.answers_without(batch=8), 0, 0, 0
    for kilobytes in (150, 400, 1500):
        with Nodes(lab) as nodes:
            computed(lab, nodes)
            nodes.link.cut_after = kilobytes << 10
            begun = time.monotonic()
            other = lab.live(connector(socket=nodes.socket("b"), **PATIENCE), batch=8)
            need(nodes.server.process.poll() == -signal.SIGKILL, "the store was not killed: too few bytes came from it")
            n, found = n + same(lab, other, reference), found + hits(other)
            failed += counted(other, "load_failed_blocks")[0]
            need(time.monotonic() - begun < 120, "the engine went on for too long")
    need(failed > 0, "no load was under way")
    return f"{n} answers equal, with the store killed in the middle of an answer three times; {failed} blocks of loads under way computed again, {found:,} tokens found before"


def scenario_remote_stopped(lab):
    """The store takes connections and answers nothing."""
    with Nodes(lab) as nodes:
        computed(lab, nodes)
        nodes.signal(signal.SIGSTOP)
        begun = time.monotonic()
        other = lab.live(connector(socket=nodes.socket("b"), retry_s=0.2, remote_timeout_s=0.5))
        late, asked = counted(other, "late_requests", "asked_requests")
        need(hits(other) == 0, "found, of a store that answers nothing?")
        need(0 < late < asked, f"{late} of {asked} requests waited for their deadline: while the store answers nothing, most are to ask nobody")
        return f"{same(lab, other)} answers equal in {time.monotonic() - begun:.0f} s; {late} of {asked} requests waited for their deadline of 0.5 s"


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")}
