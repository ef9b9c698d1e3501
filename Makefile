# SPDX-License-Identifier: Apache-2.0
# For people; meson does the building. `make help` lists what there is.
#
# Each command first installs what the machine lacks (scripts/setup.sh; does nothing when all is there).

WERROR ?= false
FUZZ_SECONDS ?= 60
TESTS := --suite unit --suite sim --suite io --suite cli --suite python --suite nvme
OPTIONS := -Dwerror=$(WERROR)
# Sanitized programs run several times slower, and stop at the first finding. The simulations have one thread.
SANITIZED := --suite unit --suite io --no-suite style --no-suite once
export UBSAN_OPTIONS ?= halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1
# ThreadSanitizer of clang 14 cannot place its shadow where the kernel randomises addresses widely.
SETARCH := $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: help setup build demo test python bench asan tsan clang lint fuzz soak engines peers install clean
.NOTPARALLEL:

help:
	@echo "make build     the library, and the programs: build/cli/tenuto, build/daemon/tenutod"
	@echo "make demo      a chat workload on a store in a temporary directory, killed and recovered (under 90 s after the build)"
	@echo "make test      all tests: unit, simulation, real I/O"
	@echo "make python    the wheel: built, installed into a new environment, tested there, with transformers where it installs"
	@echo "make bench     the store against fio, look-ups, what the scheduler costs, and the figures of a pipeline"
	@echo "make lint      style rules, shellcheck, clang with -Werror"
	@echo "make asan      tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan      unit and real I/O tests under ThreadSanitizer"
	@echo "make clang     unit tests of a build by clang (make asan runs all others by clang)"
	@echo "make fuzz      every parser's fuzz target, FUZZ_SECONDS (60) each"
	@echo "make soak      the long form of all tests: every power cut, 200 kills, faults by the 100,000, the cache's tests in QEMU (three hours)"
	@echo "make engines   vLLM, LMCache and, where it is installed, SGLang with Tenuto (installs the first two into a cache directory, 5 GB; an hour)"
	@echo "make peers     Tenuto beside the disk tiers of vLLM, LMCache and NIXL (PEERS: more options of bench/peers/run.py)"
	@echo "make install   into PREFIX (/usr/local), below DESTDIR"
	@echo "make clean     remove the build directories"

setup:
	@scripts/setup.sh

build: setup
	@scripts/build.sh build $(OPTIONS)

demo: build
	@build/cli/tenuto demo

test: build
	@scripts/run_tests.py build $(TESTS)

python: setup
	@scripts/python_test.sh

bench: build
	build/cli/tenuto bench store --vs-fio
	build/cli/tenuto bench match
	@meson test -C build --benchmark --no-rebuild --verbose

asan: setup
	@CC=clang BUILD_FOR="$(SANITIZED) --suite sim" scripts/build.sh build-asan -Db_sanitize=address,undefined $(OPTIONS)
	@scripts/run_tests.py build-asan $(SANITIZED) --suite sim --timeout-multiplier 5

tsan: setup
	@CC=clang BUILD_FOR="$(SANITIZED) --no-suite single" scripts/build.sh build-tsan -Db_sanitize=thread $(OPTIONS)
	@$(SETARCH) scripts/run_tests.py build-tsan $(SANITIZED) --no-suite single --timeout-multiplier 5

clang: setup
	@CC=clang scripts/build.sh build-clang -Dwerror=true
	@scripts/run_tests.py build-clang --suite unit --no-suite style

lint: setup
	@shellcheck scripts/*.sh .ci/run
	@CC=clang scripts/build.sh build-clang -Dwerror=true
	@scripts/run_tests.py build-clang --suite style

fuzz: setup
	@CC=clang scripts/build.sh build-fuzz -Dfuzz=true -Db_sanitize=address,undefined
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

soak: build
	@TN_SOAK=1 TN_SIM_FULL=1 TN_KILL9_ROUNDS=200 scripts/run_tests.py build --suite unit --suite sim --suite io --suite nvme --suite verbs --timeout-multiplier 30 --verbose

engines: build
	@tests/engines/install.sh
	@tests/engines/run.py --report docs/engine-runs.md
	@tests/engines/run_sglang.py --report docs/engine-runs.md || [ $$? = 77 ]

peers: setup
	@bench/peers/run.py $(PEERS)

install: build
	@meson configure build -Dprefix=$(or $(PREFIX),/usr/local)
	@DESTDIR=$(DESTDIR) meson install -C build

clean:
	rm -rf build build-asan build-tsan build-clang build-fuzz
