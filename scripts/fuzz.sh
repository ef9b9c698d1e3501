#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh DIR SECONDS [NAME...]: run the libFuzzer programs of a build directory (all, or those named), each from its
# checked-in corpus. New inputs stay in DIR/corpus/NAME; one that crashes is named, to be fixed and then added to
# tests/fuzz/corpus/NAME, where every `make test` replays it.
set -eu

dir=$1
seconds=$2
shift 2
for program in "$dir"/tests/fuzz/fuzz-*; do
	name=${program##*/fuzz-}
	case "$name" in replay-* | *.*) continue ;; esac # the replay programs and the build's own files
	case " ${*:-$name} " in *" $name "*) ;; *) continue ;; esac
	mkdir -p "$dir/corpus/$name"
	echo "fuzzing $name for $seconds s"
	"$dir/tests/fuzz/fuzz-$name" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
		-verbosity=0 -artifact_prefix="$dir/crash-$name-" "$dir/corpus/$name" "tests/fuzz/corpus/$name"
done
