/* SPDX-License-Identifier: Apache-2.0 */
#include "stalled_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tn_test.h"

#define OUTER_BYTES (144ll << 20)
#define INNER_BYTES (120ll << 20)
#define STALL_MS 40000 /* at most: only a test that fails waits so long */

/* A loop device over the file; it goes with its last user. -1: none. */
static int make_loop(int file, char name[16], int *device)
{
	struct loop_config c = {.fd = (uint32_t)file, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), rc = -1;

	for (int tries = 0; control >= 0 && rc && tries < 16; tries++) {
		char path[32];
		int n = ioctl(control, LOOP_CTL_GET_FREE);

		if (n < 0)
			break;
		snprintf(name, 16, "loop%d", n);
		snprintf(path, sizeof(path), "/dev/%s", name);
		*device = open(path, O_RDWR | O_CLOEXEC);
		if (*device < 0)
			break;
		rc = ioctl(*device, LOOP_CONFIGURE, &c);
		if (rc)
			close(*device); /* somebody else was faster */
	}
	if (control >= 0)
		close(control);
	return rc;
}

static bool make_ext4(const char *device)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		execlp("mkfs.ext4", "mkfs.ext4", "-q", "-F", "-O", "^has_journal", device, (char *)NULL);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* A new file system on a loop device over the file, mounted there. */
static bool mount_new(int file, const char *where, char name[16])
{
	char path[32];
	bool mounted;
	int device;

	if (mkdir(where, 0700) || make_loop(file, name, &device))
		return false;
	snprintf(path, sizeof(path), "/dev/%s", name);
	mounted = make_ext4(path) && mount(path, where, "ext4", 0, NULL) == 0;
	close(device);
	return mounted;
}

static bool mount_both(struct stalled_disk *d)
{
	char where[80], outer[16];
	int file = memfd_create("stalled-disk", MFD_CLOEXEC), inner = -1;
	bool made = false;

	snprintf(where, sizeof(where), "%s/o", d->root);
	if (file >= 0 && ftruncate(file, OUTER_BYTES) == 0 && mount_new(file, where, outer)) {
		snprintf(where, sizeof(where), "%s/o/disk", d->root);
		inner = open(where, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		made = inner >= 0 && posix_fallocate(inner, 0, INNER_BYTES) == 0 && mount_new(inner, d->path, d->device);
	}
	if (file >= 0)
		close(file);
	if (inner >= 0)
		close(inner);
	return made;
}

/* ---- the guard ------------------------------------------------------------------------------------------------ */

static char state_of(pid_t pid)
{
	char path[40], state = '?';
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	if (f && fscanf(f, "%*d %*s %c", &state) != 1)
		state = '?';
	if (f)
		fclose(f);
	return state;
}

/* A write that hangs, and all others after it. */
static pid_t start_write(int scratch)
{
	static _Alignas(4096) char block[4096];
	pid_t pid = fork();

	if (pid == 0) {
		(void)!pwrite(scratch, block, sizeof(block), 0);
		_exit(0);
	}
	for (int i = 0; i < 5000 && state_of(pid) != 'D'; i++)
		usleep(1000);
	return pid;
}

static void guard(int outer, int scratch, int commands)
{
	struct pollfd p = {.fd = commands, .events = POLLIN};
	pid_t writer = -1;
	char c = 0;

	prctl(PR_SET_PDEATHSIG, SIGHUP);
	signal(SIGHUP, SIG_IGN);
	for (;;) {
		bool late = poll(&p, 1, writer < 0 ? -1 : STALL_MS) == 0, over = !late && read(commands, &c, 1) != 1;

		if (!late && !over && c == 's' && writer < 0 && ioctl(outer, FIFREEZE, 0) == 0) {
			writer = start_write(scratch);
		} else if (writer >= 0) {
			ioctl(outer, FITHAW, 0);
			waitpid(writer, NULL, 0);
			writer = -1;
		}
		if (over)
			_exit(0);
		if (!late)
			(void)!write(commands, &c, 1);
	}
}

static bool start_guard(struct stalled_disk *d)
{
	char path[96];
	int outer, scratch, ends[2];

	snprintf(path, sizeof(path), "%s/o", d->root);
	outer = open(path, O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof(path), "%s/scratch", d->path);
	scratch = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	if (outer < 0 || scratch < 0 || posix_fallocate(scratch, 0, 4096) || fsync(scratch) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return false;
	d->guard = fork();
	if (d->guard == 0) {
		close(ends[0]);
		guard(outer, scratch, ends[1]);
	}
	close(ends[1]);
	close(outer);
	close(scratch);
	d->commands = ends[0];
	return true;
}

static void command(struct stalled_disk *d, char c)
{
	char answer;

	assert_int_equal(write(d->commands, &c, 1), 1);
	assert_int_equal(read(d->commands, &answer, 1), 1);
}

/* ---- the disk -------------------------------------------------------------------------------------------------- */

static void unmount(struct stalled_disk *d)
{
	char where[80];

	umount2(d->path, MNT_DETACH);
	rmdir(d->path);
	snprintf(where, sizeof(where), "%s/o", d->root);
	umount2(where, MNT_DETACH);
	rmdir(where);
	rmdir(d->root);
}

const char *stalled_disk_create(struct stalled_disk *d)
{
	const char *base = getenv("TMPDIR");

	memset(d, 0, sizeof(*d));
	if (geteuid() != 0)
		return "not root: nothing can be mounted";
	snprintf(d->root, sizeof(d->root), "%.40s/tn-stall-XXXXXX", base ? base : "/tmp");
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || !mkdtemp(d->root))
		return "no mounts of the process's own";
	snprintf(d->path, sizeof(d->path), "%s/i", d->root);
	if (mount_both(d) && start_guard(d))
		return NULL;
	unmount(d);
	return "no loop device with a file system";
}

void stalled_disk_destroy(struct stalled_disk *d)
{
	close(d->commands);
	waitpid(d->guard, NULL, 0);
	unmount(d);
}

void stalled_disk_stop(struct stalled_disk *d)
{
	command(d, 's');
}

void stalled_disk_go_on(struct stalled_disk *d)
{
	command(d, 'g');
}

unsigned stalled_disk_reads(const struct stalled_disk *d)
{
	unsigned reads = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/sys/block/%s/inflight", d->device);
	f = fopen(path, "r");
	if (f && fscanf(f, "%u", &reads) != 1)
		reads = 0;
	if (f)
		fclose(f);
	return reads;
}
