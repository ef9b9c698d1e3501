/* SPDX-License-Identifier: Apache-2.0 */
/* Who may attach, and what a process that has attached may do: by its user, and by a token. Other users take root. */
#include <stdlib.h>
#include <sys/stat.h>

#include "base/error.h"
#include "session_rig.h"

#define NOBODY 65534u
#define OTHER 65533u
#define TOKEN "a secret of team b"

static void serve(struct rig *r, const struct tn_serve_rule *rules, uint32_t n)
{
	struct tn_serve_opts o;
	char path[PATH];

	tn_serve_opts_init(&o);
	o.rules = rules;
	o.nrules = n;
	rig_set_up(r, 64u << 20, 8u << 20, 64);
	socket_path(r, path);
	assert_int_equal(chmod(r->dir, 0755), 0); /* so that others get to the socket */
	assert_int_equal(tn_cache_serve(r->cache, path, &o), 0);
	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
}

static struct tn_serve_rule rule_of(uint32_t uid)
{
	struct tn_serve_rule rule;

	tn_serve_rule_init(&rule);
	rule.uid = uid;
	return rule;
}

/* As another user, for good. */
static void become(uint32_t uid)
{
	assert_int_equal(setresuid(uid, uid, uid), 0);
}

static int attach_with(const char *dir, const char *token, struct tn_cache **out)
{
	struct tn_attach_opts o;
	char path[PATH];

	snprintf(path, sizeof(path), "%.90s/socket", dir);
	tn_attach_opts_init(&o);
	o.deadline_ns = tn_test_deadline();
	o.token = token;
	return tn_cache_attach(path, &o, out);
}

static bool says(const char *what)
{
	return strstr(tn_error_last()->text, what) != NULL;
}

static int open_tenant(struct rig *r, const char *tenant, const struct tn_quota *quota, struct rig_space *s)
{
	return rig_space_open(r, &(struct rig_space_opts){.tenant = tenant, .quota = quota}, s);
}

#define SOME 5u /* blocks */

struct counted {
	const char *name;
	uint64_t value;
};

/* ---- what other processes do ------------------------------------------------------------------------------------- */

/* The rig of a process that has attached with a token, without a space. */
static void attach_rig(const char *dir, const char *token, struct rig *r)
{
	init_in(dir, r);
	r->o.attached = true;
	assert_int_equal(attach_with(dir, token, &r->cache), 0);
}

static int is_refused(const char *dir)
{
	struct tn_cache *cache;

	become(OTHER);
	assert_int_equal(attach_with(dir, NULL, &cache), -EACCES);
	assert_true(says("user 65533"));
	assert_int_equal(attach_with(dir, "a guess", &cache), -EACCES);
	return 0;
}

static int is_refused_at_the_door(const char *dir)
{
	struct tn_cache *cache;

	become(NOBODY);
	assert_int_equal(attach_with(dir, NULL, &cache), -EACCES);
	return 0;
}

static int uses_its_tenant(const char *dir)
{
	struct tn_device_stats d = {.size = sizeof(d)};
	struct tn_owner_stats o = {.size = sizeof(o)};
	struct tn_save_result res;
	struct rig_space s;
	struct rig r;

	become(NOBODY);
	attach_rig(dir, NULL, &r);
	assert_int_equal(open_tenant(&r, "b", NULL, &s), -EACCES);
	assert_true(says("tenant 'b'"));
	assert_int_equal(open_tenant(&r, "", NULL, &s), -EACCES);
	assert_int_equal(open_tenant(&r, "a", NULL, r.s), 0);
	res = rig_save(r.s, 1, BLOCKS, 0);
	assert_int_equal(res.stored + res.existing, BLOCKS); /* of this process, or of the one before */
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(tn_cache_device_stats(r.cache, 0, &d), -EACCES);
	assert_int_equal(tn_cache_owner_stats(r.cache, &o), -EACCES);
	detach(&r);
	return 0;
}

static void check_stats(struct tn_cache *cache, const struct counted *want, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t value;

		assert_int_equal(tn_cache_stat(cache, want[i].name, &value), 0);
		if (value != want[i].value)
			fail_msg("%s is %llu, not %llu", want[i].name, (unsigned long long)value, (unsigned long long)want[i].value);
	}
}

/* What the process' tenant did before it came, by the rig's calls, and nothing of the other tenant. */
static int counts_its_tenant(const char *dir)
{
	uint64_t bytes, value[128], sum = 0, known = 0;
	struct rig r;
	int n;

	become(NOBODY);
	attach_rig(dir, NULL, &r);
	assert_int_equal(open_tenant(&r, "a", NULL, r.s), 0);
	bytes = (uint64_t)SOME * tn_geometry_block_bytes(&r.s->g);
	const struct counted want[] = {
		{"blocks", SOME}, {"host_blocks", SOME}, {"disk_blocks", SOME}, {"saves", 2}, {"saved_blocks", SOME}, {"existing_blocks", SOME},
		{"saved_bytes", bytes}, {"loads", 1}, {"load_blocks", SOME}, {"loaded_host_bytes", bytes}, {"lookups", 2},
		{"lookup_blocks", SOME + 1}, {"hit_blocks", SOME},
	};

	check_stats(r.cache, want, sizeof(want) / sizeof(want[0]));
	n = tn_cache_stats(r.cache, value, 128);
	assert_in_range(n, 1, 128);
	for (int i = 0; i < n; i++)
		sum += value[i];
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		known += want[i].value;
	assert_int_equal(sum, known); /* all the others are 0 */
	assert_int_equal(rig_match(r.s, 1, SOME), SOME);
	check_stats(r.cache, &(struct counted){"lookups", 3}, 1);
	detach(&r);
	return 0;
}

static int uses_a_token(const char *dir)
{
	struct rig_space s;
	struct rig r;

	become(OTHER);
	attach_rig(dir, TOKEN, &r);
	assert_int_equal(open_tenant(&r, "a", NULL, &s), -EACCES);
	assert_int_equal(open_tenant(&r, "b", NULL, r.s), 0);
	assert_int_equal(rig_match(r.s, 1, BLOCKS), 0); /* nothing of others */
	detach(&r);
	return 0;
}

static int only_reads(const char *dir)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * RIG_PAGES];
	struct tn_save *save;
	struct rig r;

	become(NOBODY);
	attach_rig(dir, NULL, &r);
	assert_int_equal(open_tenant(&r, NULL, NULL, r.s), 0);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	rig_keys(5000, BLOCKS, keys);
	rig_pages(r.s, 0, BLOCKS, pages);
	assert_int_equal(tn_save_begin(r.s->space, r.s->pool, keys, BLOCKS, pages, NULL, &save), -EROFS);
	assert_int_equal(tn_drop(r.s->space, keys, 1), -EROFS);
	assert_int_equal(tn_hint(r.s->space, TN_HINT_DEMOTE, keys, 1, 0), -EROFS);
	assert_int_equal(tn_space_drop(r.s->space, tn_test_deadline()), -EROFS);
	/* Also if its front does not know that. */
	r.cache->o.read_only = false;
	assert_int_equal(tn_save_begin(r.s->space, r.s->pool, keys, BLOCKS, pages, NULL, &save), 0);
	rig_save_give(r.s, save);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), -EROFS);
	detach(&r);
	return 0;
}

static int is_held_to_its_quota(const char *dir)
{
	struct tn_quota q;
	struct rig r;

	become(NOBODY);
	attach_rig(dir, NULL, &r);
	tn_quota_init(&q);
	q.bytes[TN_TIER_DISK] = UINT64_MAX; /* asks for more than it gets */
	assert_int_equal(open_tenant(&r, "a", &q, r.s), 0);
	assert_true(r.s->space->quota.bytes[TN_TIER_DISK] == 4u << 20);
	assert_true(r.s->space->quota.bytes[TN_TIER_HOST] == 0);
	rig_space_close(r.s);
	q.bytes[TN_TIER_DISK] = 1u << 20;
	assert_int_equal(open_tenant(&r, "a", &q, r.s), 0);
	assert_true(r.s->space->quota.bytes[TN_TIER_DISK] == 1u << 20);
	detach(&r);
	return 0;
}

/* ---- the tests ---------------------------------------------------------------------------------------------------- */

static bool is_root(void)
{
	return geteuid() == 0;
}

static void without_rules_only_the_owners_user_attaches(void **state)
{
	struct tn_cache *cache;
	struct rig r;

	if (!is_root())
		tn_test_skip("other users take root");
	serve(&r, NULL, 0);
	assert_int_equal(end_of(start("is_refused_at_the_door", &r)), 0);
	assert_int_equal(attach_with(r.dir, NULL, &cache), 0);
	assert_int_equal(tn_cache_close(cache), 0);
	rig_tear_down(&r);
}

static void a_rule_names_user_token_and_tenants(void **state)
{
	const char *const a[] = {"c", "a"}, *const b[] = {"b"};
	struct tn_serve_rule rules[3] = {rule_of(geteuid()), rule_of(NOBODY), rule_of(TN_ANY_UID)};
	struct tn_serve_opts o;
	struct tn_cache *cache;
	struct rig r;

	if (!is_root())
		tn_test_skip("other users take root");
	rules[1].tenants = a;
	rules[1].ntenants = 2;
	rules[2].token = TOKEN;
	rules[2].tenants = b;
	rules[2].ntenants = 1;
	serve(&r, rules, 3);
	assert_int_equal(end_of(start("is_refused", &r)), 0);
	assert_int_equal(end_of(start("uses_its_tenant", &r)), 0);
	assert_int_equal(end_of(start("uses_a_token", &r)), 0);
	/* Other rules, from now on. */
	tn_serve_opts_init(&o);
	o.rules = &rules[1];
	o.nrules = 1;
	assert_int_equal(tn_cache_serve_anew(r.cache, &o), 0);
	assert_int_equal(attach_with(r.dir, NULL, &cache), -EACCES);
	assert_int_equal(end_of(start("uses_its_tenant", &r)), 0);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	rig_tear_down(&r);
}

static void statistics_of_a_process_are_those_of_its_tenants(void **state)
{
	const char *const tenants[] = {"z", "a"};
	struct tn_serve_rule rule = rule_of(NOBODY);
	struct rig_space a;
	struct rig r;

	if (!is_root())
		tn_test_skip("other users take root");
	rule.tenants = tenants;
	rule.ntenants = 2;
	serve(&r, &rule, 1); /* and the rig has saved blocks of no tenant */
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(open_tenant(&r, "a", NULL, &a), 0);
	assert_int_equal(rig_save(&a, 1, SOME, 0).stored, SOME);
	assert_int_equal(rig_save(&a, 1, SOME, 0).existing, SOME);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(rig_load(&a, 1, SOME), SOME);
	assert_int_equal(rig_match(&a, 1, SOME), SOME);
	assert_int_equal(rig_match(&a, 900, 1), 0);
	assert_int_equal(end_of(start("counts_its_tenant", &r)), 0);
	assert_true(rig_stats(&r).loads == 2 && rig_stats(&r).saves == 3);
	rig_space_close(&a);
	rig_tear_down(&r);
}

static void a_process_that_may_only_read_changes_nothing(void **state)
{
	struct tn_serve_rule rule = rule_of(NOBODY);
	struct rig r;

	if (!is_root())
		tn_test_skip("other users take root");
	rule.read_only = true;
	serve(&r, &rule, 1);
	assert_int_equal(end_of(start("only_reads", &r)), 0);
	assert_int_equal(rig_match(r.s, 5000, 1), 0);
	rig_tear_down(&r);
}

static void a_rules_quota_is_the_most_that_a_space_gets(void **state)
{
	struct tn_serve_rule rule = rule_of(NOBODY);
	struct tn_quota q;
	struct rig r;

	if (!is_root())
		tn_test_skip("other users take root");
	tn_quota_init(&q);
	q.bytes[TN_TIER_DISK] = 4u << 20;
	q.bytes[TN_TIER_HOST] = 0;
	rule.quota = &q;
	serve(&r, &rule, 1);
	assert_int_equal(end_of(start("is_held_to_its_quota", &r)), 0);
	rig_tear_down(&r);
}

static void rules_that_make_no_sense_are_refused(void **state)
{
	char token[TN_SERVE_TOKEN_BYTES + 1], path[PATH];
	const char *const none[] = {NULL};
	struct tn_serve_rule rule = rule_of(TN_ANY_UID);
	struct tn_serve_opts o;
	struct tn_cache *cache;
	struct rig r;

	rig_set_up(&r, 0, 8u << 20, 64);
	socket_path(&r, path);
	tn_serve_opts_init(&o);
	o.rules = &rule;
	o.nrules = 1;
	assert_int_equal(tn_cache_serve_anew(r.cache, &o), -EINVAL); /* it is not served */
	assert_int_equal(tn_cache_serve(r.cache, path, &o), -EINVAL);
	assert_true(says("any user without a token"));
	memset(token, 'x', sizeof(token));
	token[sizeof(token) - 1] = '\0';
	rule.token = token;
	assert_int_equal(tn_cache_serve(r.cache, path, &o), -EINVAL);
	assert_true(says("128 bytes"));
	assert_int_equal(attach_with(r.dir, token, &cache), -EINVAL);
	rule = rule_of(1);
	rule.max_priority = 200;
	assert_int_equal(tn_cache_serve(r.cache, path, &o), -EINVAL);
	assert_true(says("200"));
	rule = rule_of(1);
	rule.tenants = none;
	rule.ntenants = 1;
	assert_int_equal(tn_cache_serve(r.cache, path, &o), -EINVAL);
	assert_true(says("tenant 0"));
	o.nrules = TN_SERVE_RULES_MAX + 1;
	assert_int_equal(tn_cache_serve(r.cache, path, &o), -EINVAL);
	assert_int_equal(access(path, F_OK), -1);
	rig_tear_down(&r);
}

static const struct {
	const char *name;
	int (*run)(const char *dir);
} bodies[] = {
	{"is_refused", is_refused},
	{"is_refused_at_the_door", is_refused_at_the_door},
	{"uses_its_tenant", uses_its_tenant},
	{"uses_a_token", uses_a_token},
	{"counts_its_tenant", counts_its_tenant},
	{"only_reads", only_reads},
	{"is_held_to_its_quota", is_held_to_its_quota},
};

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_rules_only_the_owners_user_attaches),
		cmocka_unit_test(a_rule_names_user_token_and_tenants),
		cmocka_unit_test(statistics_of_a_process_are_those_of_its_tenants),
		cmocka_unit_test(a_process_that_may_only_read_changes_nothing),
		cmocka_unit_test(a_rules_quota_is_the_most_that_a_space_gets),
		cmocka_unit_test(rules_that_make_no_sense_are_refused),
	};

	for (size_t i = 0; argc == 3 && i < sizeof(bodies) / sizeof(bodies[0]); i++)
		if (strcmp(argv[1], bodies[i].name) == 0)
			return bodies[i].run(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
