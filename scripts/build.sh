#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build.sh DIR [MESON OPTION...]: configure once, again when the options change, and build. Quiet unless it fails;
# warnings are always shown. CC chooses the compiler of a directory when it is made. With
# BUILD_FOR="--suite NAME..." only what these tests need is built.
set -eu

dir=$1
shift
log=$dir.log
stamp=$dir/tenuto-options

configure() {
	if ! meson setup "$@" >"$log" 2>&1 </dev/null; then
		tail -n 30 "$log" >&2
		exit 1
	fi
	rm -f "$log"
}

if [ ! -f "$dir/build.ninja" ]; then
	echo "configuring $dir"
	configure "$dir" "$@"
elif [ "$(cat "$stamp" 2>/dev/null)" != "$*" ]; then
	configure --reconfigure "$dir" "$@"
fi
echo "$*" >"$stamp"
echo "building $dir"
# What the tests need is known of a configuration that is up to date.
[ -z "${BUILD_FOR:-}" ] || ninja -C "$dir" --quiet build.ninja
# shellcheck disable=SC2046,SC2086 # lists of words
exec ninja -C "$dir" --quiet ${BUILD_FOR:+$(scripts/run_tests.py --targets "$dir" $BUILD_FOR)}
