/* SPDX-License-Identifier: Apache-2.0 */
/* The start of the tests' libucp: versions, settings, contexts, workers and memory. Operations are in stub_operations.c. */
#include "stub_ucp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define FAIL_HERE                         \
	do {                              \
		if (stub_fails(__func__)) \
			return UCS_ERR_NO_MEMORY; \
	} while (0)

EXPORT struct stub_ucp stub_ucp = {.address_bytes = 64, .minor = 13};

bool stub_fails(const char *function)
{
	const char *which = STUB_GET(stub_ucp.fail);

	if (!which || strcmp(which, function))
		return false;
	if (!STUB_GET(stub_ucp.fail_skip))
		return true;
	STUB_ADD(stub_ucp.fail_skip, -1u);
	return false;
}

void *stub_new(size_t bytes)
{
	void *p = calloc(1, bytes);

	if (!p)
		abort();
	STUB_ADD(stub_ucp.objects, 1);
	return p;
}

void stub_free(void *object)
{
	STUB_ADD(stub_ucp.objects, -1);
	free(object);
}

void stub_misused(const char *how)
{
	fprintf(stderr, "libucp of the tests: %s\n", how);
	abort();
}

EXPORT void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
	*major = 1;
	*minor = STUB_GET(stub_ucp.minor);
	*release = 0;
}

EXPORT ucs_status_t ucp_config_read(const char *prefix, const char *file, ucp_config_t **out)
{
	FAIL_HERE;
	*out = stub_new(1);
	stub_ucp.devices[0] = 0;
	return UCS_OK;
}

EXPORT ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value)
{
	if (!strcmp(name, "NET_DEVICES"))
		snprintf(stub_ucp.devices, sizeof(stub_ucp.devices), "%s", value);
	return UCS_OK;
}

EXPORT void ucp_config_release(ucp_config_t *config)
{
	stub_free(config);
}

EXPORT ucs_status_t ucp_init_version(unsigned major, unsigned minor, const ucp_params_t *params, const ucp_config_t *config, ucp_context_h *out)
{
	FAIL_HERE;
	*out = stub_new(1);
	return UCS_OK;
}

EXPORT void ucp_cleanup(ucp_context_h context)
{
	stub_free(context);
}

EXPORT ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params, ucp_worker_h *out)
{
	FAIL_HERE;
	*out = stub_new(sizeof(**out));
	(*out)->event = eventfd(0, EFD_CLOEXEC);
	return UCS_OK;
}

EXPORT void ucp_worker_destroy(ucp_worker_h worker)
{
	stub_worker_end(worker);
	close(worker->event);
	stub_free(worker);
}

EXPORT ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int *out)
{
	FAIL_HERE;
	*out = worker->event;
	return UCS_OK;
}

EXPORT ucs_status_t ucp_worker_query(ucp_worker_h worker, ucp_worker_attr_t *attr)
{
	FAIL_HERE;
	attr->address_length = STUB_GET(stub_ucp.address_bytes);
	attr->address = stub_new(attr->address_length);
	return UCS_OK;
}

EXPORT void ucp_worker_release_address(ucp_worker_h worker, ucp_address_t *address)
{
	stub_free(address);
}

EXPORT ucs_status_t ucp_worker_arm(ucp_worker_h worker)
{
	return stub_worker_busy(worker) ? UCS_ERR_BUSY : UCS_OK;
}

EXPORT unsigned ucp_worker_progress(ucp_worker_h worker)
{
	return stub_worker_turn(worker);
}

EXPORT ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *out)
{
	FAIL_HERE;
	*out = stub_new(sizeof(**out));
	(*out)->address = params->address;
	(*out)->bytes = params->length;
	return UCS_OK;
}

EXPORT ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh)
{
	if (STUB_GET(memh->users))
		stub_misused("memory is unmapped while an operation uses it");
	stub_free(memh);
	return UCS_OK;
}

/* A key is the address of the registration. */
EXPORT ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void **out, size_t *bytes)
{
	FAIL_HERE;
	*out = stub_new(sizeof(memh));
	memcpy(*out, &memh, sizeof(memh));
	*bytes = sizeof(memh);
	return UCS_OK;
}

EXPORT void ucp_rkey_buffer_release(void *key)
{
	stub_free(key);
}
