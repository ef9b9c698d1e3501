/* SPDX-License-Identifier: Apache-2.0 */
/* A sandbox like that of a container: chosen system calls fail, in all threads of this process, for good. */
#ifndef TN_TEST_SECCOMP_H
#define TN_TEST_SECCOMP_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tn_test_child.h"

#define TN_FORBID_SETUP 1u
#define TN_FORBID_ENTER 2u
#define TN_FORBID_REGISTER 4u
#define TN_FORBID_STAT 8u /* stat, lstat and fstat */
#define TN_FORBID_CMA 16u /* process_vm_readv and process_vm_writev */

/* 0, or TN_TEST_SKIP where seccomp itself is refused. All other calls are allowed. */
static inline int tn_test_forbid(unsigned calls, int error)
{
	const unsigned none = (unsigned)-1;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls & TN_FORBID_SETUP ? __NR_io_uring_setup : none, 6, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls & TN_FORBID_ENTER ? __NR_io_uring_enter : none, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls & TN_FORBID_REGISTER ? __NR_io_uring_register : none, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls & TN_FORBID_STAT ? __NR_newfstatat : none, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls & TN_FORBID_CMA ? __NR_process_vm_readv : none, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls & TN_FORBID_CMA ? __NR_process_vm_writev : none, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
	};
	struct sock_fprog prog = {sizeof(code) / sizeof(code[0]), code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog))
		return TN_TEST_SKIP;
	return 0;
}

#endif
