/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libucp as this plugin uses it: declarations of UCX's own headers (1.13 or later), functions found in libucp.so.0 when the first agent wants them.
 *
 * Nothing of UCX is linked, so the plugin opens where UCX is missing, and says so. UCX reads some of its settings while it is loaded: they are set before.
 */
#ifndef TN_UCX_API_H
#define TN_UCX_API_H

#include <ucp/api/ucp.h>

/* X(name): functions of libucp. */
#define UCX_FUNCTIONS(X)        \
	X(ucp_get_version)      \
	X(ucp_init_version)     \
	X(ucp_cleanup)          \
	X(ucp_config_read)      \
	X(ucp_config_modify)    \
	X(ucp_config_release)   \
	X(ucp_mem_map)          \
	X(ucp_mem_unmap)        \
	X(ucp_rkey_pack)        \
	X(ucp_rkey_buffer_release) \
	X(ucp_ep_rkey_unpack)   \
	X(ucp_rkey_destroy)     \
	X(ucp_worker_create)    \
	X(ucp_worker_destroy)   \
	X(ucp_worker_query)     \
	X(ucp_worker_release_address) \
	X(ucp_worker_get_efd)   \
	X(ucp_worker_arm)       \
	X(ucp_worker_progress)  \
	X(ucp_ep_create)        \
	X(ucp_ep_close_nbx)     \
	X(ucp_ep_flush_nbx)     \
	X(ucp_put_nbx)          \
	X(ucp_get_nbx)          \
	X(ucp_request_check_status) \
	X(ucp_request_free)

#define UCX_DECLARE(name) __typeof__(name) *name;
struct ucx_api {
	unsigned major, minor;
	UCX_FUNCTIONS(UCX_DECLARE)
};
#undef UCX_DECLARE

/* Opened at the first call, once per process. 0 and *out; -ENOENT: there is no UCX; -EPROTO: an older one than 1.13. With a text. */
int ucx_api_open(const struct ucx_api **out);

/* The text of this thread's last failure. */
const char *ucx_error(void);
/* Sets the text, returns the code. */
int ucx_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What a status of UCX is as -errno. */
int ucx_errno(ucs_status_t status);
/* As text. */
const char *ucx_status(ucs_status_t status);

#endif
