/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process sends its owner descriptors of a file system that does not answer (FUSE, by the kernel's own protocol: linux/fuse.h). Whatever the owner
 * did with such a file, asked for its status or closed, would last for ever; others are to notice nothing. Takes a right to mount.
 */
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "front/wire.h"
#include "session_rig.h"

#define NO_MOUNT 77
#define STUCK 24u /* more messages than descriptors are closed at once */

/* ---- the file system: it has one file, and answers neither its status nor its end ------------------------------- */

static int device;

static void reply(uint64_t unique, int error, const void *bytes, size_t n)
{
	struct fuse_out_header h = {.len = (uint32_t)(sizeof(h) + n), .error = error, .unique = unique};
	char message[sizeof(h) + sizeof(struct fuse_entry_out)];

	memcpy(message, &h, sizeof(h));
	memcpy(message + sizeof(h), bytes, n);
	(void)!write(device, message, h.len);
}

static struct fuse_attr attr_of(uint64_t node)
{
	return (struct fuse_attr){.ino = node, .mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0666, .nlink = 1, .size = 4096};
}

static void answer(const struct fuse_in_header *h)
{
	struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
	struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 1000, .attr = attr_of(2)};
	struct fuse_attr_out attr = {.attr = attr_of(h->nodeid)};
	struct fuse_open_out opened = {.fh = 1};

	if (h->opcode == FUSE_INIT)
		reply(h->unique, 0, &init, sizeof(init));
	else if (h->opcode == FUSE_LOOKUP)
		reply(h->unique, 0, &entry, sizeof(entry));
	else if (h->opcode == FUSE_GETATTR && h->nodeid == FUSE_ROOT_ID)
		reply(h->unique, 0, &attr, sizeof(attr));
	else if (h->opcode == FUSE_OPEN)
		reply(h->unique, 0, &opened, sizeof(opened));
	else if (h->opcode == FUSE_ACCESS)
		reply(h->unique, -ENOSYS, NULL, 0);
}

/* Mounts it where this process alone, and one that it starts, see it. It ends with this process, and so does what waits for it. */
static int serve_files(const char *dir)
{
	static char request[1 << 20];
	const struct fuse_in_header *h = (const struct fuse_in_header *)(const void *)request;
	char options[100], path[200];
	struct rig r;

	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (device < 0 || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		_exit(NO_MOUNT);
	snprintf(path, sizeof(path), "%s/fuse", dir);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if (mkdir(path, 0755) || mount("tenuto-test", path, "fuse", 0, options))
		_exit(NO_MOUNT);
	snprintf(r.dir, sizeof(r.dir), "%s", dir);
	start("strangers", &r);
	for (;;) {
		ssize_t n = read(device, request, sizeof(request));

		if (n >= (ssize_t)sizeof(*h))
			answer(h);
		else if (n < 0 && errno != EINTR && errno != ENOENT)
			_exit(0);
	}
}

/* ---- who sends it -------------------------------------------------------------------------------------------- */

static void send_with(int sock, const void *message, size_t bytes, int fd)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {{0}};
	struct iovec iov = {(void *)(uintptr_t)message, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	assert_int_equal(sendmsg(sock, &m, MSG_NOSIGNAL), bytes);
}

/* The answer to a memory that lies in the file. */
static int registered(int sock, int fd)
{
	struct tn_wire_memory w = {.magic = TN_WIRE_MAGIC, .nranges = 1, .turn = 1};
	struct tn_wire_registered answer;

	w.range[0].bytes = 4096;
	send_with(sock, &w, sizeof(w), fd);
	assert_int_equal(recv(sock, &answer, sizeof(answer), 0), sizeof(answer));
	return answer.status;
}

static int send_strangers(const char *dir)
{
	struct tn_cache *cache;
	char path[PATH];
	struct rig r;
	int fd, sock;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(path, sizeof(path), "%s/fuse/file", dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	snprintf(r.dir, sizeof(r.dir), "%s", dir);
	socket_path(&r, path);
	assert_int_equal(tn_cache_attach(path, patient(), &cache), 0);
	sock = session_socket();
	send_with(connect_to(path, SOCK_SEQPACKET), "?", 1, fd); /* before it has said who it is */
	for (uint32_t i = 0; i < STUCK; i++) {
		int rc = registered(sock, fd);

		assert_true(rc == -EINVAL || rc == -EAGAIN);
		assert_true(i > 0 || rc == -EINVAL);
		assert_true(i < STUCK - 1 || rc == -EAGAIN);
	}
	snprintf(path, sizeof(path), "%s/sent", dir);
	assert_true(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) >= 0);
	while (pause() < 0)
		;
	return 0;
}

static void nobody_waits_for_a_file_system_that_does_not_answer(void **state)
{
	struct tn_cache *cache;
	struct rig r;
	char path[PATH], sent[sizeof(r.dir) + 8];
	int status = 0;
	pid_t pid;

	set_up(&r);
	socket_path(&r, path);
	pid = start("files", &r);
	snprintf(sent, sizeof(sent), "%s/sent", r.dir);
	while (access(sent, F_OK) && waitpid(pid, &status, WNOHANG) == 0)
		usleep(1000);
	if (access(sent, F_OK) == 0) {
		assert_int_equal(tn_cache_attach(path, patient(), &cache), 0);
		assert_int_equal(tn_cache_close(cache), 0);
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	rig_tear_down(&r);
	if (WIFEXITED(status) && WEXITSTATUS(status) == NO_MOUNT)
		tn_test_skip("a file system of this process cannot be mounted here");
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(int argc, char **argv)
{
	static const struct body bodies[] = {
		{"files", serve_files},
		{"strangers", send_strangers},
		{NULL, NULL},
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_waits_for_a_file_system_that_does_not_answer),
	};
	int rc = run_body(argc, argv, bodies);

	return rc >= 0 ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
