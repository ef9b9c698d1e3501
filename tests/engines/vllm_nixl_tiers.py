# SPDX-License-Identifier: Apache-2.0
"""Scenarios of run.py: vLLM's own secondary tiers that use NIXL, over Tenuto's module nixl: `obj` (an S3 server), and `p2p` (one engine's host memory to another's)."""
import os
import signal
import sys
import uuid

import checks
from lab import HERE
from vllm_pd import Server, ask

sys.path.append(os.path.join(HERE, "../../python/tests"))

import s3_servers  # noqa: E402


def tier(**what):
    transfer = checks.tier()
    transfer["kv_connector_extra_config"]["secondary_tiers"] = [what]
    return transfer


def scenario_nixl_obj(lab):
    """Cold, and after a restart: blocks are objects of SeaweedFS. The tier asks for telemetry, which its agent does not enable itself."""
    if not s3_servers.weed_program():
        return "not run: SeaweedFS is missing (scripts/setup.sh)"
    server, endpoint = s3_servers.seaweedfs(lab.fresh("weed"), "blocks")
    try:
        make = tier(type="obj", prefix="vllm", store_config={"bucket": "blocks", "endpoint_override": endpoint, "access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY,
                                                             "region": "us-east-1"})
        job = {"nixl": lab.args.nixl, "settle": 2,
               "env": {"TENUTO_PLUGIN_PATH": os.path.join(lab.args.build, "plugins/s3"), "NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_DIR": lab.fresh("telemetry")}}
        first, second = lab.live(make, **job), lab.live(make, **job)
    finally:
        server.close()
    checks.need(checks.hits(second) > 0, "nothing was found after the restart")
    return f"{checks.same(lab, first) + checks.same(lab, second)} answers equal; {checks.hits(second):,} tokens found after the restart"


def scenario_nixl_p2p(lab):
    """One engine prefills, and writes its blocks from its host memory into that of the engine that decodes."""
    prefill, decode = ends = [Server(lab, {"PYTHONHASHSEED": "0"}) for _ in range(2)]
    try:
        for end in ends:
            end.transfer = tier(type="p2p", host="127.0.0.1", port=end.side)
            end.start()
        for end in ends:
            end.wait_ready()
        for i, tokens in enumerate(lab.prompts[:10]):
            name = str(uuid.uuid4())
            ask(prefill.port, lab.model, tokens, max_tokens=1, kv_transfer_params={"remote_decoder": {"kv_request_id": name}})
            told = ask(decode.port, lab.model, tokens, kv_transfer_params={"remote_prefiller": {"kv_request_id": name, "remote_host": "127.0.0.1", "remote_port": prefill.side}})
            checks.need(told["choices"][0]["token_ids"] == lab.reference[i], f"prompt {i} has other tokens than the reference")
        moved = decode.moved_tokens()
    finally:
        for end in ends:
            end.send(signal.SIGKILL)
    checks.need(moved > 0, "no token came from the other engine")
    return f"10 answers equal; {moved:,} tokens came from the other engine's host memory"


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")}
