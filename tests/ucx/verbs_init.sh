#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# What the machine of verbs.py does: a software RDMA device (rxe) on a network device without a wire, and programs over it. Steps print what those of
# tests/nvme/program_init.sh print.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run
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

# Packets that the device has sent.
packets() {
    /bin/busybox cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
}

for m in $MODULES; do /bin/busybox insmod "/modules/$m.ko"; done
/bin/busybox ip link set lo up
/bin/busybox ip addr add 10.0.0.1/24 dev dummy0
/bin/busybox ip link set dummy0 up
step link /rdma link add rxe0 type rxe netdev dummy0
export TENUTO_PLUGIN_PATH=/plugins CMOCKA_MESSAGE_OUTPUT=TAP UCX_TLS="$TLS" UCX_NET_DEVICES="$NET_DEVICES" HOME=/tmp
step show /rdma link show
step before packets
for op in WRITE READ; do
    step $op /tenuto bench xfer --backend ucx --peer --check --op_type $op --num_iter 2 --max_block_size 32KiB --max_batch_size 8 \
        --total_buffer_size 16MiB
done
step churn /verbs-churn
step after packets
/bin/busybox poweroff -f
