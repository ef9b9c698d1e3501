/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin ucx over a libucp.so.0 of the tests for one agent: each call of its start fails in turn, is told in words, and leaves nothing behind. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/xfer.h>

#include "stub_ucp.h"
#include "tn_test.h"

static char memory[4096];
static struct stub_ucp *stub;

static int try_agent(struct tn_xfer_agent **out)
{
	const char *backend = "ucx";
	struct tn_xfer_agent_opts opts;

	tn_xfer_agent_opts_init(&opts);
	opts.name = "one";
	opts.listen = "none";
	opts.backends = &backend;
	opts.nbackends = 1;
	return tn_xfer_agent_create(&opts, out);
}

static void expect_text(const char *words)
{
	if (!strstr(tn_error_last()->text, words))
		fail_msg("\"%s\" lacks \"%s\"", tn_error_last()->text, words);
}

static void a_library_that_is_too_old_is_refused(void **state)
{
	struct tn_xfer_agent *a;

	STUB_SET(stub->minor, 12);
	assert_int_equal(try_agent(&a), -EPROTO);
	expect_text("UCX 1.12");
	STUB_SET(stub->minor, 13);
}

static void each_call_of_the_start_may_fail(void **state)
{
	static const struct {
		const char *call;
		int code;
		const char *words;
	} calls[] = {
		{"ucp_config_read", -EINVAL, "UCX's settings"}, {"ucp_init_version", -ENOMEM, "does not start"}, {"ucp_worker_create", -ENOMEM, "no worker"},
		{"ucp_worker_get_efd", -ENOMEM, "event descriptor"}, {"ucp_worker_query", -ENOMEM, "no address"},
	};
	struct tn_xfer_agent *a;

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		STUB_SET(stub->fail, calls[i].call);
		assert_int_equal(try_agent(&a), calls[i].code);
		expect_text(calls[i].words);
		assert_int_equal(STUB_GET(stub->objects), 0);
	}
	STUB_SET(stub->fail, NULL);
}

static void an_address_that_is_too_long_is_refused(void **state)
{
	struct tn_xfer_agent *a;

	STUB_SET(stub->address_bytes, 100000);
	assert_int_equal(try_agent(&a), -E2BIG);
	expect_text("UCX_NET_DEVICES");
	STUB_SET(stub->address_bytes, 64);
	assert_int_equal(STUB_GET(stub->objects), 0);
}

static void a_section_that_ucx_does_not_take_is_refused(void **state)
{
	struct tn_xfer_section s = {.address = (uintptr_t)memory, .bytes = sizeof(memory)};
	struct tn_xfer_agent *a;
	int before;

	assert_int_equal(try_agent(&a), 0);
	before = STUB_GET(stub->objects);
	STUB_SET(stub->fail, "ucp_mem_map");
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), -ENOMEM);
	expect_text("4096 bytes cannot be registered");
	assert_int_equal(STUB_GET(stub->objects), before);
	STUB_SET(stub->fail, NULL);
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
	assert_int_equal(STUB_GET(stub->objects), before + 1);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, &s, 1, tn_test_deadline()), 0);
	assert_int_equal(STUB_GET(stub->objects), before);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(STUB_GET(stub->objects), 0);
}

static void no_network_is_used_unless_the_user_names_it(void **state)
{
	struct tn_xfer_agent *a;

	unsetenv("UCX_NET_DEVICES");
	assert_int_equal(try_agent(&a), 0);
	assert_string_equal(stub->devices, "lo");
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	setenv("UCX_NET_DEVICES", "eth7", 1);
	assert_int_equal(try_agent(&a), 0);
	assert_string_equal(stub->devices, ""); /* UCX reads the variable itself */
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	unsetenv("UCX_NET_DEVICES");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_library_that_is_too_old_is_refused),
		cmocka_unit_test(each_call_of_the_start_may_fail),
		cmocka_unit_test(an_address_that_is_too_long_is_refused),
		cmocka_unit_test(a_section_that_ucx_does_not_take_is_refused),
		cmocka_unit_test(no_network_is_used_unless_the_user_names_it),
	};
	void *library = dlopen("libucp.so.0", RTLD_NOW);

	stub = library ? dlsym(library, "stub_ucp") : NULL;
	if (!stub)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
