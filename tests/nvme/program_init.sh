#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# What the machine of program.py does, step by step; settings come from there. A step prints "begin NAME SECONDS", what the program says, and
# "end NAME STATUS SECONDS".
/bin/busybox mkdir -p /proc /sys /dev /tmp /mnt
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox mkdir -p /dev/shm
/bin/busybox mount -t tmpfs none /dev/shm
/bin/busybox mount -t tmpfs none /tmp
. /settings

step() {
    name=$1
    shift
    read -r at rest </proc/uptime
    echo "begin $name $at"
    "$@" 2>&1
    rc=$?
    read -r at rest </proc/uptime
    echo "end $name $rc $at"
}

load() {
    for m in $1; do /bin/busybox insmod "/modules/$m.ko"; done
}

# As the refusals say.
bind() {
    echo vfio-pci >"/sys/bus/pci/devices/$1/driver_override"
    [ ! -e "/sys/bus/pci/devices/$1/driver" ] || echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"
    echo "$1" >/sys/bus/pci/drivers_probe
}

# The third drive has partitions: the kernel's driver has it, and each is used in turn, which no serial number overrides.
claims() {
    load "$NVME_MODULES"
    for i in 1 2 3 4 5 6 7 8 9 10; do
        used=$(echo /dev/nvme*n1p3)
        [ ! -b "$used" ] || break
        /bin/busybox sleep 0.2
    done
    used=${used%p3}
    echo "# the used drive is $used"
    step claim-driver /tenuto store format --nvme "$used"
    /bin/busybox mke2fs "${used}p1" >/dev/null
    /bin/busybox mount -t ext2 "${used}p1" /mnt
    step claim-mounted /tenuto store format --nvme "$used" --force-serial used
    step claim-doctor /tenuto doctor /
    step claim-cache /tenuto demo --nvme "$1" --requests 60
    /bin/busybox umount /mnt
    # In another mount namespace, as a container's: this process's mountinfo does not have it.
    /bin/busybox unshare -m /bin/busybox sh -c "/bin/busybox mount -t ext2 ${used}p1 /mnt && echo >/tmp/held && exec /bin/busybox sleep 600" &
    for i in 1 2 3 4 5 6 7 8 9 10; do
        [ ! -f /tmp/held ] || break
        /bin/busybox sleep 0.2
    done
    step claim-held /tenuto store format --nvme "$used" --force-serial used
    kill $!
    wait
    /bin/busybox mkswap "${used}p2" >/dev/null
    /bin/busybox swapon "${used}p2"
    step claim-swap /tenuto store format --nvme "$1" --force-serial used
    /bin/busybox swapoff "${used}p2"
    echo md0 >/sys/module/md_mod/parameters/new_array
    echo none >/sys/block/md0/md/metadata_version
    echo linear >/sys/block/md0/md/level
    echo 1 >/sys/block/md0/md/raid_disks
    read -r numbers <"/sys/class/block/${used#/dev/}p3/dev"
    echo "$numbers" >/sys/block/md0/md/new_dev
    step claim-raid /tenuto store format --nvme "$used" --force-serial used
    echo remove >"/sys/block/md0/md/dev-${used#/dev/}p3/state"
    printf '_BHRfS_M' | /bin/busybox dd of="${used}p2" bs=1 seek=65600 conv=notrunc 2>/dev/null
    step claim-btrfs /tenuto store format --nvme "$1" --force-serial used
    /bin/busybox dd if=/dev/zero of="${used}p2" bs=4096 seek=16 count=1 conv=notrunc 2>/dev/null
    printf '\014\261\272\000\000\000\000\000' | /bin/busybox dd of="${used}p3" bs=1 seek=16646144 conv=notrunc 2>/dev/null # the last label: 16 MiB - 128 KiB
    step claim-zfs /tenuto store format --nvme "$used" --force-serial used
    /bin/busybox dd if=/dev/zero of="${used}p3" bs=4096 seek=4064 count=1 conv=notrunc 2>/dev/null
    step claim-free /tenuto store format --nvme "$used" --force-serial used
}

load "$VFIO_MODULES"
drives=
for d in /sys/bus/pci/devices/*; do
    read -r class <"$d/class"
    [ "$class" = 0x010802 ] || continue
    drives="$drives ${d##*/}"
done
# shellcheck disable=SC2086 # addresses
set -- $drives
step refused /tenuto store format --nvme "$1"
claims "$3"
for d in "$@"; do bind "$d"; done
step doctor /tenuto doctor /
step used /tenuto store format --nvme "$3"
step foreign /tenuto store format --nvme "$2"
step forced /tenuto store format --nvme "$2" --force-serial large
step format /tenuto store format --nvme "$1"
export CMOCKA_MESSAGE_OUTPUT=TAP TN_SEED="$SEED" TN_TEST_NVME="nvme:$1"
for t in $TESTS; do
    step "$t" /bin/busybox timeout -s KILL "$TEST_SECONDS" "/$t"
    for p in /proc/[0-9]*; do # a process that a failed test has left would keep the controller
        [ "$(/bin/busybox readlink "$p/exe")" != "/$t" ] || kill -9 "${p#/proc/}"
    done
done
unset TN_TEST_NVME
/tenuto store format --nvme "$1"
step demo /tenuto demo --nvme "$1" --requests 60 --json
if [ -f /trace.jsonl ]; then
    step replay /tenuto replay --dir "nvme:$1" --dir "nvme:$2" --verify --limit "$REQUESTS" --geometry "$GEOMETRY" \
        --capacity-blocks "$CAPACITY_BLOCKS" --json /trace.jsonl
    step info /tenuto store info "nvme:$1" "nvme:$2"
    step verify /tenuto store verify "nvme:$1" "nvme:$2"
    step check /tenuto store check "nvme:$1" "nvme:$2"
fi
/bin/busybox poweroff -f
