#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# python_test.sh: build the wheel, install it into a new environment, and run the tests of the package there. TN_PYTHON: the interpreter (python3); where it
# has torch and transformers, the environment sees them, and the tests of tenuto.hf run, too. Prints "python: N passed, N failed, N skipped".
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
python=${TN_PYTHON:-python3}
env=$(mktemp -d /var/tmp/tenuto-wheel-XXXXXX)
trap 'rm -rf "$env"' EXIT

"$python" -m venv "$env"
# Of an environment, too, what lies in its site-packages.
"$python" -c 'import site; print("\n".join(site.getsitepackages()))' >"$("$env/bin/python" -c 'import site; print(site.getsitepackages()[0])')/zz-outside.pth"
echo "building the wheel"
"$env/bin/pip" install -q --disable-pip-version-check "$root" || exit 1
"$env/bin/tenuto" --version
"$env/bin/tenutod" --version

passed=0 failed=0 skipped=0
for name in cache arrays ends futures hf; do
	rc=0
	out=$(cd "$root/python/tests" && env -u PYTHONPATH PYTHONDONTWRITEBYTECODE=1 "$env/bin/python" "test_$name.py") || rc=$?
	printf '%s\n' "$out" | grep -v '^ok [0-9]* - [^#]*$' || true
	skip=$(printf '%s\n' "$out" | grep -c '^ok .*# SKIP') || true
	good=$(printf '%s\n' "$out" | grep -c '^ok ') || true
	bad=$(printf '%s\n' "$out" | grep -c '^not ok ') || true
	[ "$rc" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + good - skip)) skipped=$((skipped + skip)) failed=$((failed + bad))
done
[ -z "${TN_TALLY:-}" ] || echo "$passed $failed $skipped" >>"$TN_TALLY"
echo "python: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
