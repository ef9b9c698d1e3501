# SPDX-License-Identifier: Apache-2.0
"""Imports vLLM once, and forks a process for each job file that appears in a directory: an engine's life then begins in a second.

    python launcher.py DIR

DIR/NAME.job begins a life: of a server (vllm_server.py) if the job has the key "serve", else of an engine (vllm_worker.py). "env" goes into its environment, and "nixl" names the
directory of the package nixl. DIR/NAME.pid is its process, NAME.log what it writes, NAME.rc its exit code when it has ended. DIR/stop ends the launcher.
"""
import glob
import json
import os
import runpy
import sys
import time
import traceback


def live(job):
    """In the child."""
    base = job.removesuffix(".job")
    log = os.open(base + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.setsid()
    os.rename(job, base + ".running")
    with open(base + ".running") as f:
        what = json.load(f)
    os.environ.update(what.get("env", {}))
    if "nixl" in what:
        sys.path.insert(0, what["nixl"])
    script = "vllm_server.py" if "serve" in what else "vllm_worker.py"
    with open(base + ".pid.part", "w") as f:
        f.write(str(os.getpid()))
    os.rename(base + ".pid.part", base + ".pid")
    sys.argv = [script, base + ".running"]
    code = 1
    try:
        runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), script), run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    try:
        import atexit
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        with open(base + ".rc.part", "w") as f:
            f.write(str(code))
        os.rename(base + ".rc.part", base + ".rc")
        os._exit(code)


def main():
    directory = sys.argv[1]
    import torch
    torch.set_num_threads(1)
    import vllm.model_executor.models.llama
    import vllm.v1.engine.core
    import vllm.v1.engine.llm_engine
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_worker
    from vllm import LLM  # noqa: F401
    open(os.path.join(directory, "ready"), "w").close()
    while not os.path.exists(os.path.join(directory, "stop")):
        for job in sorted(glob.glob(os.path.join(directory, "*.job"))):
            with open(job) as f:
                if "serve" in json.load(f):
                    import vllm.entrypoints.openai.api_server
            if os.fork() == 0:
                live(job)
            while os.path.exists(job):
                time.sleep(0.02)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.1)


if __name__ == "__main__":
    main()
