/* SPDX-License-Identifier: Apache-2.0 */
#include "api.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAJOR 1u
#define MINOR 13u
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

static _Thread_local char text[512];

static struct {
	pthread_mutex_t lock;
	void *library;
	struct ucx_api api;
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

const char *ucx_error(void)
{
	return text;
}

int ucx_fail(int code, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	return code;
}

static const struct {
	ucs_status_t status;
	int code;
	const char *text;
} meanings[] = {
	{UCS_ERR_NO_MEMORY, -ENOMEM, "no memory"},
	{UCS_ERR_INVALID_PARAM, -EINVAL, "an argument is wrong"},
	{UCS_ERR_UNREACHABLE, -EHOSTUNREACH, "no transport reaches the peer"},
	{UCS_ERR_INVALID_ADDR, -EFAULT, "an address is not mapped"},
	{UCS_ERR_NO_DEVICE, -ENODEV, "no device"},
	{UCS_ERR_UNSUPPORTED, -ENOTSUP, "no transport supports it"},
	{UCS_ERR_CONNECTION_RESET, -ECONNRESET, "the peer has reset the connection"},
	{UCS_ERR_ENDPOINT_TIMEOUT, -ECONNRESET, "the peer does not answer"},
	{UCS_ERR_NOT_CONNECTED, -ECONNRESET, "the peer is not connected"},
	{UCS_ERR_REJECTED, -ECONNRESET, "the peer has refused the connection"},
	{UCS_ERR_CANCELED, -ECONNRESET, "the connection was given up"},
	{UCS_ERR_SOME_CONNECTS_FAILED, -EHOSTUNREACH, "a connection failed"},
};

int ucx_errno(ucs_status_t status)
{
	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
		if (meanings[i].status == status)
			return meanings[i].code;
	return status == UCS_OK ? 0 : -EIO;
}

const char *ucx_status(ucs_status_t status)
{
	static _Thread_local char number[32];

	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
		if (meanings[i].status == status)
			return meanings[i].text;
	snprintf(number, sizeof(number), "UCX status %d", (int)status);
	return number;
}

/*
 * What UCX reads while it is loaded, unless the user has set it. Its hooks of malloc and munmap would serve a cache of registrations that we do not
 * need, because each transfer names registered memory; where others in the process fill that cache, it has a bound. A library takes no signals of its
 * host, and nothing but results is printed to stdout.
 */
static void set_environment(void)
{
	static const char *const settings[][2] = {
		{"UCX_MEM_EVENTS", "n"}, {"UCX_RCACHE_MAX_UNRELEASED", "512M"}, {"UCX_HANDLE_ERRORS", "none"}, {"UCX_LOG_FILE", "stderr"},
		{"UCX_WARN_UNUSED_ENV_VARS", "n"},
	};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		setenv(settings[i][0], settings[i][1], 0);
}

/* The caller holds the lock. */
static int open_library(void)
{
	struct ucx_api *api = &opened.api;
#define UCX_FIND(function) {#function, &api->function},
	const struct {
		const char *name;
		void *to;
	} functions[] = {UCX_FUNCTIONS(UCX_FIND)};
#undef UCX_FIND
	unsigned release = 0;
	void *library;

	/* UCX reads it while it is loaded, and says on stdout that it could not, before it looks at its settings. */
	if (access(BOOT_ID, R_OK))
		return ucx_fail(-errno, "UCX needs %s, which this process cannot read: mount /proc", BOOT_ID);
	set_environment();
	library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!library)
		return ucx_fail(-ENOENT, "UCX is not there: %s: install it (Debian's libucx0, or libucx-cu12 of PyPI with its directory in LD_LIBRARY_PATH)",
				dlerror());
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *function = dlsym(library, functions[i].name);

		if (!function)
			return ucx_fail(-EPROTO, "libucp.so.0 has no %s: install UCX %u.%u or later", functions[i].name, MAJOR, MINOR);
		memcpy(functions[i].to, &function, sizeof(function));
	}
	api->ucp_get_version(&api->major, &api->minor, &release);
	if (api->major != MAJOR || api->minor < MINOR)
		return ucx_fail(-EPROTO, "libucp.so.0 is of UCX %u.%u: %u.%u or a later %u is wanted", api->major, api->minor, MAJOR, MINOR, MAJOR);
	opened.library = library;
	return 0;
}

int ucx_api_open(const struct ucx_api **out)
{
	int rc = 0;

	pthread_mutex_lock(&opened.lock);
	if (!opened.library)
		rc = open_library();
	pthread_mutex_unlock(&opened.lock);
	if (rc == 0)
		*out = &opened.api;
	return rc;
}
