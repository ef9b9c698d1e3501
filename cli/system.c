/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs ask of the operating system: time, CPU used, interrupts, files and directories. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

uint64_t cli_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void cli_hold_streams(void)
{
	int fd;

	/* What is written to them still fails, and nothing can be read: `tenuto status --once >&-` has to say that nobody got the result. */
	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd < STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

bool cli_default_socket(bool exists, char *path, size_t path_bytes)
{
	const char *const dirs[] = {getenv("RUNTIME_DIRECTORY"), getenv("XDG_RUNTIME_DIR"), "/run/tenuto"};

	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		int bytes = dirs[i] ? (int)strcspn(dirs[i], ":") : 0; /* systemd names several so */
		int n = snprintf(path, path_bytes, "%.*s", bytes, dirs[i] ? dirs[i] : "");

		if (n <= 0 || path[0] != '/' || (size_t)n + sizeof("/tenuto.sock") > path_bytes || (!exists && access(path, W_OK | X_OK)))
			continue;
		snprintf(path + n, path_bytes - (size_t)n, "/tenuto.sock");
		if (!exists || access(path, F_OK) == 0)
			return true;
	}
	return false;
}

double cli_cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

#define SAME_INTERRUPT_NS 1000000000u

static const int interrupts[] = {SIGINT, SIGTERM, SIGHUP};
#define INTERRUPTS (sizeof(interrupts) / sizeof(interrupts[0]))

static volatile sig_atomic_t interrupted;
static _Atomic uint64_t interrupted_ns;

/*
 * The first signal asks the verb to clean up and stop, the next one kills. Signals within a second of the first
 * count as the first: timeout(1) and terminals signal the process and then its process group. A kill would leave files behind.
 */
static void on_interrupt(int sig)
{
	const int saved = errno;
	const uint64_t now = cli_now_ns();

	if (!interrupted) {
		interrupted_ns = now;
		interrupted = 1;
	} else if (now - interrupted_ns >= SAME_INTERRUPT_NS) {
		signal(sig, SIG_DFL);
		raise(sig);
	}
	errno = saved;
}

void cli_catch_interrupts(void)
{
	struct sigaction was, sa = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};

	for (size_t i = 0; i < INTERRUPTS; i++)
		if (sigaction(interrupts[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN) /* nohup ignores SIGHUP, a shell SIGINT of what it leaves behind */
			sigaction(interrupts[i], &sa, NULL);
}

bool cli_interrupted(void)
{
	return interrupted;
}

bool cli_is_drive(const char *dir)
{
	return strncmp(dir, "nvme:", 5) == 0;
}

int cli_check_dir(const char *option, const char *path)
{
	struct stat st;

	if (cli_is_drive(path))
		return cli_error(CLI_USAGE, "%s%s: is a drive; a directory is needed here", option, path);
	if (stat(path, &st))
		return cli_error(cli_exit_of(-errno), "%s%s: %s", option, path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return cli_error(CLI_USAGE, "%s%s: is not a directory", option, path);
	return CLI_OK;
}

int cli_check_place(const char *option, const char *path)
{
	return cli_is_drive(path) ? CLI_OK : cli_check_dir(option, path); /* opening a drive says what is wrong */
}

size_t cli_find_same(const char *const *dirs, size_t i)
{
	struct stat a, b;
	bool there = stat(dirs[i], &a) == 0;
	size_t k = 0;

	while (k < i && strcmp(dirs[k], dirs[i]) != 0 && !(there && stat(dirs[k], &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino))
		k++;
	return k;
}

int cli_check_free_bytes(const char *dir, uint64_t bytes)
{
	struct statvfs v;
	uint64_t free_bytes;
	char a[32], b[32];

	if (statvfs(dir, &v))
		return cli_error(cli_exit_of(-errno), "%s: %s", dir, strerror(errno));
	free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
	if (bytes <= free_bytes)
		return CLI_OK;
	return cli_error(CLI_ENVIRONMENT, "needs %s of disk, and where %s lies %s are free; give --dir",
			 cli_bytes(a, (double)bytes), dir, cli_bytes(b, (double)free_bytes));
}

int cli_try_file(const char *option, const char *path, bool *made)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	*made = fd >= 0;
	if (fd < 0 && errno == EEXIST)
		fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return cli_error(cli_exit_of(-errno), "%s%s: %s", option, path, strerror(errno));
	close(fd);
	return CLI_OK;
}

void cli_forget_file(const char *path, bool made)
{
	struct stat st;

	if (made && !stat(path, &st) && !st.st_size)
		unlink(path);
}

/*
 * Models lie below the program's own prefix if it is installed, and in the sources if it runs from a build directory
 * there.
 */
static const char *const model_places[] = {"../share/tenuto/devices", "../../share/devices"};

int cli_find_device_model(const char *name, char *path, size_t path_bytes)
{
	char exe[PATH_MAX];
	ssize_t n;
	char *slash;

	snprintf(path, path_bytes, "%s", name);
	if (!access(path, R_OK) || strchr(name, '/'))
		return CLI_OK;
	n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = 0;
	slash = strrchr(exe, '/');
	for (size_t i = 0; slash && i < sizeof(model_places) / sizeof(model_places[0]); i++) {
		snprintf(path, path_bytes, "%.*s/%s/%s.model", (int)(slash - exe), exe, model_places[i], name);
		if (!access(path, R_OK))
			return CLI_OK;
	}
	for (size_t i = 0; slash && i < sizeof(model_places) / sizeof(model_places[0]); i++) {
		char dir[2 * PATH_MAX], real[PATH_MAX];

		snprintf(dir, sizeof(dir), "%.*s/%s", (int)(slash - exe), exe, model_places[i]);
		if (realpath(dir, real))
			return cli_error(CLI_USAGE, "--device-model %s: neither a file nor one of %s/*.model", name, real);
	}
	return cli_error(CLI_USAGE, "--device-model %s: no such file, and no models are installed beside the program", name);
}
