/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the kernel, what its io_uring can do for us, and huge pages. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include <liburing.h>

#include "cli.h"
#include "doctor.h"

static void probe_version(struct doctor *d)
{
	struct utsname u;
	unsigned major = 0, minor = 0;
	bool new;

	if (uname(&u) || sscanf(u.release, "%u.%u", &major, &minor) != 2) {
		doctor_add(d, "kernel", DOCTOR_NO, "everything else", "run Linux", "unknown");
		return;
	}
	new = major > 6 || (major == 6 && minor >= 1);
	doctor_add(d, "kernel", new ? DOCTOR_YES : DOCTOR_PARTLY, "all of io_uring that matters, from 6.1 on",
		   "a kernel of 6.1 or later (Debian 12's own); older ones work, with more system calls", "%s %s", u.sysname,
		   u.release);
}

static bool setup_works(unsigned flags)
{
	struct io_uring_params p;
	struct io_uring ring;

	memset(&p, 0, sizeof(p));
	p.flags = flags;
	if (io_uring_queue_init_params(8, &ring, &p))
		return false;
	io_uring_queue_exit(&ring);
	return true;
}

static void probe_uring_features(struct doctor *d, struct io_uring *ring)
{
	bool defer = setup_works(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
	bool coop = setup_works(IORING_SETUP_COOP_TASKRUN);
	bool files = io_uring_register_files_sparse(ring, 4) == 0;

	doctor_add(d, "io_uring features", defer && files ? DOCTOR_YES : DOCTOR_PARTLY, "less CPU per GB",
		   "a newer kernel: DEFER_TASKRUN needs 6.1", "completions %s, registered files %s",
		   defer ? "deferred" : coop ? "cooperative" : "by interrupt", files ? "yes" : "no");
}

/* A sandbox may allow to make a ring and refuse to serve it. Returns the error, and which call failed. */
static int first_refused(struct io_uring *ring, const char **call)
{
	int err = io_uring_get_events(ring);
	struct io_uring_probe *probe;

	*call = "io_uring_enter";
	if (err < 0)
		return err;
	*call = "io_uring_register";
	probe = io_uring_get_probe_ring(ring);
	io_uring_free_probe(probe);
	return probe ? 0 : -EPERM;
}

static void probe_uring(struct doctor *d)
{
	static const char gives[] = "many transfers a system call, not threads";
	uint64_t disabled = doctor_read_number("/proc/sys/kernel/io_uring_disabled", 0);
	const char *call = "io_uring_setup";
	struct io_uring ring;
	int err = io_uring_queue_init(8, &ring, 0);

	if (!err) {
		err = first_refused(&ring, &call);
		if (err)
			io_uring_queue_exit(&ring);
	}
	if (err) {
		doctor_add(d, "io_uring", DOCTOR_NO, gives,
			   disabled ? "sysctl kernel.io_uring_disabled=0" :
				      "allow io_uring in the container's seccomp profile, or a kernel with CONFIG_IO_URING",
			   "%s: %s%s", call, strerror(-err), disabled ? " (kernel.io_uring_disabled is set)" : "");
		return;
	}
	doctor_add(d, "io_uring", DOCTOR_YES, gives, "", "works");
	probe_uring_features(d, &ring);
	io_uring_queue_exit(&ring);
}

/* Which of the words of a setting stands in brackets, as in "always [madvise] never". NULL: there is no such setting. */
static const char *chosen(const char *path, char *line, size_t bytes)
{
	char *word;

	doctor_read_line(path, line, bytes);
	word = strchr(line, '[');
	if (word && strchr(word, ']'))
		*strchr(++word, ']') = '\0';
	return word;
}

static void probe_hugepages(struct doctor *d)
{
	static const char gives[] = "contiguous host memory: faster transfers, less CPU per GB";
	static const char shared_gives[] = "the same for memory of attached processes";
	uint64_t reserved = doctor_read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", 0);
	char line[128], shared_line[128];
	const char *mode = chosen("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line));
	const char *shared = chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared_line, sizeof(shared_line));
	bool merged = shared && strcmp(shared, "never") && strcmp(shared, "deny");

	doctor_add(d, "hugepages", mode && strcmp(mode, "never") ? DOCTOR_YES : reserved ? DOCTOR_PARTLY : DOCTOR_NO, gives,
		   "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", "transparent %s, reserved 2 MiB pages %llu",
		   mode ? mode : "not available", (unsigned long long)reserved);
	doctor_add(d, "shared hugepages", merged ? DOCTOR_YES : reserved ? DOCTOR_PARTLY : DOCTOR_NO, shared_gives,
		   "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or reserve some: sysctl vm.nr_hugepages=N",
		   "transparent %s, reserved 2 MiB pages %llu", shared ? shared : "not available", (unsigned long long)reserved);
}

void doctor_probe_kernel(struct doctor *d)
{
	probe_version(d);
	probe_uring(d);
	probe_hugepages(d);
}
