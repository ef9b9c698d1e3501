#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# python_test.sh: build the wheel, install it into a new environment, and run the tests of the package there.
#
# TN_PYTHON: the interpreter (python3). Where it has torch and transformers, the environment sees them and the tests of tenuto.hf, of kernels and of pictures run, too; where it has not,
# they are installed once, from the Python registry, into an environment below TENUTO_CACHE (~/.cache/tenuto), while the wheel is built. What the registry does
# not give within TN_INSTALL_SECONDS (150) is skipped, and said. Prints "python: N passed, N failed, N skipped"; with TN_TALLY=FILE the numbers go there, too.
set -eu

ENGINE="torch==2.13.0 transformers==5.19.0 triton==3.9.0 matplotlib==3.10.9"
root=$(cd "$(dirname "$0")/.." && pwd)
python=${TN_PYTHON:-python3}
limit=${TN_INSTALL_SECONDS:-150}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
store=${TENUTO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tenuto}/transformers-$(echo "$version $ENGINE" | cksum | cut -d' ' -f1)
env=$(mktemp -d /var/tmp/tenuto-wheel-XXXXXX)
passed=0 failed=0 skipped=0 installing=

cleanup() {
	[ -z "$installing" ] || kill "$installing" 2>/dev/null || true
	rm -rf "$env"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

# Of environments of the same requirements, several runs make one: each makes its own and the first one done stays.
install_engine() {
	new=$(mktemp -d "$(dirname "$store")/.new-XXXXXX") || return 1
	# shellcheck disable=SC2086 # a list of words
	timeout "$limit" "$env/bin/pip" -q install --timeout 15 --retries 1 --target "$new/packages" $ENGINE >"$env/engine.log" 2>&1 &
	pip=$!
	trap 'kill "$pip"; wait "$pip"; rm -rf "$new"; exit 1' TERM
	if wait "$pip"; then
		mv -T "$new" "$store" 2>/dev/null || true
	fi
	rm -rf "$new"
}

report() {
	[ -z "${TN_TALLY:-}" ] || echo "$passed $failed $skipped" >>"$TN_TALLY"
	echo "python: $passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ]
}

"$python" -m venv "$env"
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -c 'import sys, tomllib; print("\n".join(tomllib.load(open(sys.argv[1], "rb"))["build-system"]["requires"]))' "$root/pyproject.toml" >"$env/needs"
if ! timeout 60 "$env/bin/pip" -q download --timeout 15 --retries 1 --no-deps -d "$env/needed" -r "$env/needs" >"$env/needs.log" 2>&1; then
	echo "# SKIP the wheel: what builds it does not come from the Python registry: $(grep -v '^WARNING' "$env/needs.log" | tail -n 1)"
	skipped=1
	report
	exit
fi
site=$("$env/bin/python" -c 'import site; print(site.getsitepackages()[0])')
if "$python" -c 'import importlib.util as i, sys; sys.exit(not (i.find_spec("torch") and i.find_spec("transformers")))'; then
	# Of an environment, too, what lies in its site-packages.
	"$python" -c 'import site; print("\n".join(site.getsitepackages()))' >"$site/zz-outside.pth"
elif [ -d "$store/packages" ]; then
	echo "$store/packages" >"$site/zz-outside.pth"
else
	mkdir -p "$(dirname "$store")"
	install_engine &
	installing=$!
fi
echo "building the wheel"
"$env/bin/pip" -q wheel --no-deps -w "$env/wheel" "$root" || exit 1
"$env/bin/pip" -q install "$env"/wheel/*.whl || exit 1
TN_WHEEL=$(echo "$env"/wheel/*.whl)
export TN_WHEEL
"$env/bin/tenuto" --version
"$env/bin/tenutod" --version
if [ -n "$installing" ]; then
	wait "$installing" || true
	installing=
	if [ -d "$store/packages" ]; then
		echo "$store/packages" >"$site/zz-outside.pth"
	else
		echo "# $ENGINE: not here after $limit s at most: $(grep -v '^WARNING' "$env/engine.log" | tail -n 1)"
	fi
fi

for name in cache arrays torch ends futures options parts sequence shares plugins heap heap_kernels heap_llama heap_remote hf hf_gpu hf_models hf_remote hf_shares plot slack profile xfer_layout nixl_metadata gpu_check; do
	rc=0
	plugins= # a build of this tree has the soft device of its tests
	[ "$name" != hf_gpu ] || plugins="$root/build/tests"
	out=$(cd "$root/python/tests" && env -u PYTHONPATH PYTHONDONTWRITEBYTECODE=1 ${plugins:+"TENUTO_PLUGIN_PATH=$plugins"} timeout 300 "$env/bin/python" "test_$name.py") || rc=$?
	printf '%s\n' "$out" | grep -v '^ok [0-9]* - [^#]*$' || true
	skip=$(printf '%s\n' "$out" | grep -c '^ok .*# SKIP') || true
	good=$(printf '%s\n' "$out" | grep -c '^ok ') || true
	bad=$(printf '%s\n' "$out" | grep -c '^not ok ') || true
	[ "$rc" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + good - skip)) skipped=$((skipped + skip)) failed=$((failed + bad))
done
report
