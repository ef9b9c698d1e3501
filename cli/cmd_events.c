/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto events`: the published block events of caches, of Tenuto or vLLM, as a follower sees them.
 *
 *   tail   each event as a line
 *   tree   what the caches hold, as often as it changes
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <tenuto/prefix_tree.h>
#include <tenuto/subscribe.h>
#include <tenuto/types.h>

#include "cli.h"

#define CACHES_MAX 64
#define TREE_BLOCKS (1u << 22)
#define TURN_NS 100000000u
#define SETTLE_TURNS 50 /* --once waits so long for a cache that does not answer */

struct events_args {
	uint64_t count;
	bool once;
};

static const struct cli_opt tail_options[] = {
	{"count", "N", "0: until interrupted", "end after so many events", CLI_COUNT, offsetof(struct events_args, count), 0, UINT64_MAX},
	{0},
};

static const struct cli_verb tail_verb = {
	.name = "events tail",
	.operands = "BUS,endpoint=ADDRESS,replay=ADDRESS",
	.about = "Prints the block events that a cache of Tenuto or a vLLM engine publishes, one per line: the batch's number, what happened, the tier, the "
		 "block's hash and its parent's. Begins with a snapshot where the publisher gives one. As zmq,endpoint=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558.",
	.opts = tail_options,
	.min_operands = 1,
	.max_operands = 1,
};

static const struct cli_opt tree_options[] = {
	{"once", NULL, NULL, "print once, when all caches have told what they hold or after 5 s, and end", CLI_FLAG, offsetof(struct events_args, once), 0, 0},
	{0},
};

static const struct cli_verb tree_verb = {
	.name = "events tree",
	.operands = "BUS,endpoint=ADDRESS,replay=ADDRESS ...",
	.about = "Follows the published block events of several caches, and prints how many blocks each holds and how well that is known.",
	.opts = tree_options,
	.min_operands = 1,
	.max_operands = CACHES_MAX,
};

static void pause_a_turn(void)
{
	nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL);
}

/* ---- tail ------------------------------------------------------------------------------------------------------- */

struct tail {
	uint64_t left; /* shared; events that are still to be printed */
};

static void print_hash(const unsigned char *hash, size_t bytes)
{
	if (bytes == 0)
		printf(" -");
	for (size_t i = 0; i < bytes; i++)
		printf(i ? "%02x" : " %02x", hash[i]);
}

static void print_event(void *arg, uint64_t sequence, const struct tn_bus_event *e)
{
	static const char *const kind[] = {"stored", "removed", "cleared"};
	static const char *const tier[] = {"-", "device", "host", "disk", "remote"};
	struct tail *t = arg;

	if (__atomic_load_n(&t->left, __ATOMIC_RELAXED) == 0)
		return;
	printf("%" PRIu64 " %s %s", sequence, e->kind < 3 ? kind[e->kind] : "?", e->tier < 5 ? tier[e->tier] : "?");
	print_hash(e->hash, e->hash_bytes);
	print_hash(e->parent, e->parent_bytes);
	printf("%s\n", e->ntokens ? " with token ids" : "");
	fflush(stdout);
	__atomic_sub_fetch(&t->left, 1, __ATOMIC_RELEASE);
}

static int cmd_tail(int argc, char **argv)
{
	struct events_args a = {0};
	struct tail t;
	struct tn_subscribe_opts o = {.size = sizeof(o), .on_event = print_event, .arg = &t};
	struct tn_subscriber *s;
	int n, rc = cli_parse(&tail_verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	t.left = a.count ? a.count : UINT64_MAX;
	rc = tn_subscribe_start(argv[1], &o, &s);
	if (rc)
		return cli_fail(rc, NULL);
	while (__atomic_load_n(&t.left, __ATOMIC_ACQUIRE) > 0 && !ferror(stdout))
		pause_a_turn();
	tn_subscribe_stop(s);
	return cli_finish(CLI_OK);
}

/* ---- tree --------------------------------------------------------------------------------------------------------- */

struct caches {
	struct tn_tree *tree;
	struct tn_subscriber *sub[CACHES_MAX];
	struct tn_subscribe_state state[CACHES_MAX];
	int n;
};

/* Reads all states. Whether something is new. */
static bool read_states(struct caches *c, bool *settled)
{
	bool changed = false;

	*settled = true;
	for (int i = 0; i < c->n; i++) {
		struct tn_subscribe_state s = {.size = sizeof(s)};

		tn_subscribe_state(c->sub[i], &s);
		changed |= s.events != c->state[i].events || s.current != c->state[i].current || s.connected != c->state[i].connected;
		*settled &= s.current;
		c->state[i] = s;
	}
	return changed;
}

static void print_caches(const struct caches *c, char **spec)
{
	static const bool left[] = {true, true};
	struct cli_table t;

	cli_table_init(&t, 8, left);
	for (size_t i = 0; i < 8; i++)
		cli_table_cell(&t, "%s", ((const char *const[]){"cache", "known", "blocks", "events", "gaps", "snapshots", "restarts", "next"})[i]);
	for (int i = 0; i < c->n; i++) {
		const struct tn_subscribe_state *s = &c->state[i];
		uint64_t blocks;

		tn_tree_digest(c->tree, (uint32_t)i, &blocks);
		cli_table_cell(&t, "%s", spec[i]);
		cli_table_cell(&t, "%s", !s->connected ? "away" : !s->current ? "not yet" : s->complete ? "all" : "in part");
		cli_table_cell(&t, "%" PRIu64, blocks);
		cli_table_cell(&t, "%" PRIu64, s->events);
		cli_table_cell(&t, "%" PRIu64, s->gaps);
		cli_table_cell(&t, "%" PRIu64, s->snapshots);
		cli_table_cell(&t, "%" PRIu64, s->restarts);
		cli_table_cell(&t, "%" PRIu64, s->next);
	}
	cli_table_print(&t, stdout, true);
	fflush(stdout);
}

static void watch(struct caches *c, char **spec, bool once)
{
	bool settled = false;

	for (int turn = 0; !ferror(stdout); turn++) {
		bool changed = read_states(c, &settled);

		if (once && (settled || turn == SETTLE_TURNS)) {
			print_caches(c, spec);
			return;
		}
		if (!once && (changed || turn == 0))
			print_caches(c, spec);
		pause_a_turn();
	}
}

static int cmd_tree(int argc, char **argv)
{
	struct events_args a = {0};
	struct caches c = {0};
	int n, rc = cli_parse(&tree_verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	rc = tn_tree_create(TREE_BLOCKS, (uint32_t)n, &c.tree);
	while (rc == 0 && c.n < n) {
		struct tn_subscribe_opts o = {.size = sizeof(o), .tree = c.tree, .cache = (uint32_t)c.n};

		rc = tn_subscribe_start(argv[1 + c.n], &o, &c.sub[c.n]);
		c.n += rc == 0;
	}
	if (rc)
		rc = cli_fail(rc, NULL);
	else
		watch(&c, argv + 1, a.once);
	for (int i = 0; i < c.n; i++)
		tn_subscribe_stop(c.sub[i]);
	tn_tree_destroy(c.tree);
	return rc ? rc : cli_finish(CLI_OK);
}

int cmd_events(int argc, char **argv)
{
	static const struct cli_command commands[] = {
		{"tail", cmd_tail, "print the block events that a cache publishes"},
		{"tree", cmd_tree, "what several caches hold, by their events"},
		{NULL, NULL, NULL},
	};

	return cli_dispatch("tenuto events", "Follows the block events that caches publish.", commands, argc, argv);
}
