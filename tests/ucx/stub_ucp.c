/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libucp.so.0 of the tests: moves nothing, and fails the call that STUB_UCP_FAIL names. stub_open says how many objects have not been given back, stub_devices which network
 * devices were chosen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#define EXPORT __attribute__((visibility("default")))
#define FAIL_HERE                        \
	do {                             \
		if (fails(__func__))     \
			return UCS_ERR_NO_MEMORY; \
	} while (0)

static int objects, event = -1;
static char devices[32];
static char thing;

static int fails(const char *call)
{
	const char *which = getenv("STUB_UCP_FAIL");

	return which && !strcmp(which, call);
}

static void *object(void)
{
	__atomic_add_fetch(&objects, 1, __ATOMIC_RELAXED);
	return &thing;
}

static void give_back(void)
{
	__atomic_sub_fetch(&objects, 1, __ATOMIC_RELAXED);
}

EXPORT int stub_open(void)
{
	return __atomic_load_n(&objects, __ATOMIC_RELAXED);
}

EXPORT const char *stub_devices(void)
{
	return devices;
}

EXPORT void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
	*major = 1;
	*minor = fails("ucp_get_version") ? 12 : 13;
	*release = 0;
}

EXPORT ucs_status_t ucp_config_read(const char *prefix, const char *file, ucp_config_t **out)
{
	FAIL_HERE;
	*out = object();
	devices[0] = 0;
	return UCS_OK;
}

EXPORT ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value)
{
	if (!strcmp(name, "NET_DEVICES"))
		snprintf(devices, sizeof(devices), "%s", value);
	return UCS_OK;
}

EXPORT void ucp_config_release(ucp_config_t *config)
{
	give_back();
}

EXPORT ucs_status_t ucp_init_version(unsigned major, unsigned minor, const ucp_params_t *params, const ucp_config_t *config, ucp_context_h *out)
{
	FAIL_HERE;
	*out = object();
	return UCS_OK;
}

EXPORT void ucp_cleanup(ucp_context_h context)
{
	give_back();
}

EXPORT ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params, ucp_worker_h *out)
{
	FAIL_HERE;
	*out = object();
	event = eventfd(0, EFD_CLOEXEC);
	return UCS_OK;
}

EXPORT void ucp_worker_destroy(ucp_worker_h worker)
{
	close(event);
	give_back();
}

EXPORT ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int *out)
{
	FAIL_HERE;
	*out = event;
	return UCS_OK;
}

EXPORT ucs_status_t ucp_worker_query(ucp_worker_h worker, ucp_worker_attr_t *attr)
{
	FAIL_HERE;
	attr->address_length = getenv("STUB_UCP_ADDRESS") ? strtoul(getenv("STUB_UCP_ADDRESS"), NULL, 10) : 64;
	attr->address = calloc(1, attr->address_length);
	object();
	return UCS_OK;
}

EXPORT void ucp_worker_release_address(ucp_worker_h worker, ucp_address_t *address)
{
	free(address);
	give_back();
}

EXPORT ucs_status_t ucp_worker_arm(ucp_worker_h worker)
{
	return UCS_OK;
}

EXPORT unsigned ucp_worker_progress(ucp_worker_h worker)
{
	return 0;
}

EXPORT ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *out)
{
	FAIL_HERE;
	*out = object();
	return UCS_OK;
}

EXPORT ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh)
{
	give_back();
	return UCS_OK;
}

EXPORT ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void **out, size_t *bytes)
{
	FAIL_HERE;
	*out = object();
	*bytes = 1;
	return UCS_OK;
}

EXPORT void ucp_rkey_buffer_release(void *key)
{
	give_back();
}

