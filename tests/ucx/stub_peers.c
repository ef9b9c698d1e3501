/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libucp that need a peer, which no test of this library has: the plugin finds them, and calls none. */
#include <stdlib.h>

#define NEVER(name)                                                  \
	__attribute__((visibility("default"))) void name(void);      \
	void name(void)                                              \
	{                                                            \
		abort();                                             \
	}

NEVER(ucp_ep_rkey_unpack)
NEVER(ucp_rkey_destroy)
NEVER(ucp_ep_create)
NEVER(ucp_ep_close_nbx)
NEVER(ucp_ep_flush_nbx)
NEVER(ucp_get_nbx)
NEVER(ucp_request_check_status)
NEVER(ucp_request_free)
NEVER(ucp_put_nbx)
